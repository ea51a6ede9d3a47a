"""Convolution by Winograd's method: partial tiles, blocks of tiles, halos, rounding."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.schedules.cpu.images.conv2d_blocked import WINOGRAD, BlockedConv2dSpace
from hetero_tvm.schedules.cpu.images.conv2d_winograd_kernel import TileGrid
from tests.schedules.cpu.images.helpers import PAD, WINOGRAD_ERROR, on
from tests.schedules.cpu.running import MACHINES, SWEPT, check_points, compiled, shapes_of

SPACE = BlockedConv2dSpace()
AVX2 = MACHINES["avx2"]


@pytest.mark.thorough
@pytest.mark.parametrize("machine", SWEPT)
@pytest.mark.parametrize("method", WINOGRAD)
def test_tiles_blocks_and_halos(machine, method):
    """Whole and partial tiles, one and several blocks of tiles, which share what is transformed or have their
    own, panels past the filters, zeros around."""
    ops = [
        on(
            machine,
            Conv2d(2, 20, 9, 11, 35, (3, 3), padding=PAD, epilogue=("bias", "residual", "relu")),
            *("+1,2,2,1", "+1,1,1,1", "+0,1,2,3"),
        ),
        on(
            machine,
            Conv2d(1, 16, 8, 8, 4, (3, 3), padding=(0, 1, 2, 1), epilogue=("gate", "residual", "bias")),
            "+1,1,2,1",
        ),
        on(machine, Conv2d(1, 3, 3, 1, 5, (3, 3), padding=PAD, epilogue=("relu",)), "+1,1,1,1"),
    ]
    for op, pieces in zip(ops, (((1, 2), (2, 1), (4, 2)), ((2, 1),), ((1, 1),)), strict=True):
        tile = SPACE.knobs(op, machine)[1].choices[-1]
        points = [
            *({"method": method, "tile": tile, "blocks": b, "groups": g} for b, g in pieces),
            {**SPACE.default(op, machine), "method": method},
        ]
        check_points(SPACE, op, points, machine, tolerance=WINOGRAD_ERROR)


def test_it_is_exact_enough_over_many_channels():
    """Close to what a plain float32 sum has: the points of the construction are chosen for that."""
    op = on(AVX2, Conv2d(1, 64, 12, 12, 8, (3, 3), padding=PAD), "+1,1,1,1")
    point = {**SPACE.default(op, AVX2), "method": "winograd4"}
    check_points(SPACE, op, [point], AVX2, tolerance=3e-6)


PAD1 = (0, 1, 0, 1)
FILTERS = [
    (
        Conv2d(1, 20, 1, 37, 35, (1, 3), padding=(0, 1, 0, 1), epilogue=("bias", "residual", "relu")),
        "+0,1,0,1",
    ),
    (Conv2d(2, 16, 1, 40, 32, (1, 5), padding=(0, 2, 0, 2)), "+0,2,0,3"),
    (Conv2d(1, 24, 5, 31, 9, (1, 7), padding=(0, 3, 0, 3), epilogue=("bias",)), "+0,3,0,3"),
    (Conv2d(1, 24, 1, 61, 9, (1, 9), (1, 1), (0, 12, 0, 12), (1, 3), epilogue=("gate",)), "+0,12,0,12"),
    (Conv2d(1, 8, 2, 5, 9, (1, 3), (1, 1), (0, 4, 0, 0), (1, 2), epilogue=("bias",)), "+0,4,0,0"),
    (Conv2d(1, 33, 1, 12, 17, (1, 12)), ""),
    (Conv2d(1, 20, 1, 90, 17, (1, 64), padding=(0, 31, 0, 32)), "+0,31,0,32"),
    (Conv2d(1, 24, 31, 5, 9, (7, 1), padding=(3, 0, 3, 0), epilogue=("bias",)), "+3,0,4,0"),
    (Conv2d(1, 9, 13, 14, 9, (3, 3), (1, 1), (2, 3, 2, 3), (2, 3), epilogue=("residual",)), "+2,3,2,3"),
    (Conv2d(2, 9, 11, 10, 20, (5, 5), padding=(2, 2, 2, 2)), "+2,2,2,3"),
    (Conv2d(1, 17, 9, 12, 5, (3, 7), padding=(1, 3, 1, 3), dilation=(2, 1)), "+2,3,1,3"),
    (Conv2d(1, 8, 4, 5, 9, (9, 4), (1, 1), (4, 2, 4, 1)), "+4,2,4,1"),
    (Conv2d(1, 20, 12, 11, 17, (2, 2), padding=(1, 1, 1, 1), epilogue=("bias",)), "+1,1,1,1"),
    (Conv2d(2, 9, 1, 23, 9, (1, 2), (1, 1), (0, 3, 0, 0), (1, 3)), "+0,3,0,0"),
    (Conv2d(1, 9, 10, 10, 9, (2, 3), padding=(0, 1, 1, 1)), "+0,1,1,1"),
    (Conv2d(2, 20, 13, 14, 17, (3, 3), (2, 2), (1, 1, 1, 1), epilogue=("bias", "relu")), "+1,1,1,1"),
    (Conv2d(1, 20, 11, 12, 17, (5, 4), (2, 2), (2, 1, 2, 1)), "+2,1,3,1"),
    (Conv2d(1, 9, 1, 43, 9, (1, 7), (1, 2), (0, 3, 0, 3), epilogue=("bias",)), "+0,3,0,3"),
    (Conv2d(1, 9, 9, 10, 9, (1, 3), (2, 1), (0, 1, 0, 1)), "+0,1,0,1"),
    (Conv2d(2, 48, 9, 10, 96, (3, 3), padding=PAD, groups=3, epilogue=("bias",)), "+1,1,1,1"),
]


@pytest.mark.thorough
@pytest.mark.parametrize("machine", SWEPT)
@pytest.mark.parametrize("case", FILTERS, ids=lambda case: case[0].label)
def test_filters_in_parts(machine, case):
    """Whole and partial parts of three taps, dilated ones, few pixels; one axis or both."""
    op = on(machine, case[0], case[1], "+0,2,0,1", "+0,1,0,3")
    assert set(WINOGRAD) < set(SPACE.knobs(op, machine)[0].choices)
    tile = SPACE.knobs(op, machine)[1].choices[-1]
    pieces = ((1, 1), (1, 2), (2, 1), (3, 2))
    points = [{"method": m, "tile": tile, "blocks": b, "groups": g} for m in WINOGRAD for b, g in pieces]
    check_points(SPACE, op, points, machine, tolerance=WINOGRAD_ERROR)


def test_rows_of_many_channels_have_fewer_products():
    machine = MACHINES["avx512"]
    wide = Conv2d(1, 128, 1, 1000, 128, (1, 9), padding=(0, 4, 0, 4))
    assert SPACE.default(on(machine, wide, "+0,4,0,4"), machine)["method"] == "winograd4"
    for other in (
        Conv2d(1, 128, 1, 1000, 128, (1, 9), strides=(1, 3)),
        Conv2d(1, 128, 1, 1000, 128, (1, 9), strides=(1, 2), dilation=(1, 2)),
        Conv2d(1, 128, 20, 50, 128, (2, 2), strides=(2, 2)),
        Conv2d(1, 128, 1, 1000, 128, (1, 9), groups=16),
        Conv2d(1, 128, 1, 1000, 128, (1, 73)),
        Conv2d(1, 128, 20, 50, 128, (10, 20)),
    ):
        assert SPACE.knobs(on(machine, other, ""), machine)[0].choices == ("direct",)


@pytest.mark.parametrize(
    "wide",
    [
        Conv2d(1, 64, 512, 512, 64, (7, 7), padding=(3, 3, 3, 3)),
        Conv2d(1, 32, 1, 400_000, 32, (1, 11), padding=(0, 5, 0, 5)),
    ],
    ids=lambda op: op.label,
)
def test_what_is_transformed_of_large_images_stays_near(wide):
    """Blocks of some megabytes for each thread would go through memory: 1.2 to 2 times as long."""
    machine = MACHINES["avx512"]
    op = on(machine, wide, "+" + ",".join(map(str, wide.padding)))
    point = SPACE.default(op, machine)
    tiles = TileGrid(op, WINOGRAD[point["method"]])
    assert 4 * tiles.points * tiles.depth * -(-tiles.count // point["blocks"]) < 2 * machine.l2


@pytest.mark.thorough
def test_many_blocks():
    """More blocks than rows, by every method."""
    machine = dataclasses.replace(AVX2, l2=8 << 10)
    op = on(machine, Conv2d(1, 16, 60, 60, 8, (3, 3), padding=PAD), "+1,1,1,1")
    method, tile, blocks, _ = SPACE.knobs(op, machine)
    assert max(blocks.choices) == 224
    points = [{"method": m, "tile": tile.choices[0], "blocks": 224, "groups": 1} for m in method.choices]
    check_points(SPACE, op, points, machine, tolerance=WINOGRAD_ERROR)


@pytest.mark.thorough
@pytest.mark.parametrize("kernel, dilation", [((1, 2), 1), ((1, 7), 3), ((1, 3), 6)])
def test_nan_stays_within_its_tiles(kernel, dilation):
    """As docs/numerics.md says: also that of the last pixel, read again for what lies past the row."""
    op = on(AVX2, Conv2d(2, 8, 2, 60, 8, kernel, dilation=(1, dilation)))
    tile = SPACE.knobs(op, AVX2)[1].choices[0]
    point = {"method": "winograd4", "tile": tile, "blocks": 2, "groups": 1}
    (run,) = compiled([(SPACE.emit(op, point, AVX2), shapes_of(op))])
    w = np.ones((8, 8, *kernel), "float32")
    packed = np.asarray(TileGrid(op, 4).pack_weight(op, w, AVX2.lanes, tile[2]), dtype="float32")
    for pixel in (0, 31, 59):
        x = np.zeros((2, 2, 60, 8), "float32")
        x[0, 1, pixel, 3] = np.nan
        y = run(x.reshape(op.inputs[0].shape), packed).reshape(2, 2, op.out_width, 8)
        reached = np.isnan(y[0, 1]).any(axis=-1)
        windows = [pixel - tap * dilation for tap in range(kernel[1])]
        inside = [place for place in windows if 0 <= place < op.out_width]
        near = [min(abs(place - window) for window in windows) for place in range(op.out_width)]
        assert reached[inside].all() and max(np.array(near)[reached]) <= 5 * dilation
        assert not np.isnan(y[1]).any() and not np.isnan(y[0, 0]).any()
