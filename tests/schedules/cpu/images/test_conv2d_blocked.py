"""Convolution on channel blocks: strides, dilations, groups, halos; every choice of every knob."""

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.images.blocked import PixelTile
from hetero_tvm.schedules.cpu.images.conv2d_blocked import BlockedConv2dSpace
from hetero_tvm.schedules.cpu.images.conv2d_blocked_kernel import BlockedConvKernel
from hetero_tvm.schedules.cpu.images.conv2d_blocked_shape import BlockedShape
from tests.ops.helpers import sample_inputs
from tests.schedules.cpu.images.helpers import PAD, WINOGRAD_ERROR, on, random_blocks, random_conv2d
from tests.schedules.cpu.running import (
    MACHINES,
    SWEPT,
    check_points,
    check_shapes,
    llvm_of,
    point_runners,
)
from tests.selection import thorough

SPACE = BlockedConv2dSpace()
AVX2 = MACHINES["avx2"]


@pytest.mark.thorough
@pytest.mark.parametrize("machine", SWEPT)
def test_every_choice_computes_the_convolution(machine):
    ops = [
        on(machine, Conv2d(1, 3, 14, 13, 7, (7, 7), (2, 2), (3, 3, 3, 3), epilogue=("bias", "relu")), None),
        on(
            machine,
            Conv2d(2, 20, 9, 11, 35, (3, 3), padding=PAD, epilogue=("bias", "residual", "relu")),
            *("+1,2,2,1", "+1,1,1,1", "+0,1,2,3"),
        ),
        on(machine, Conv2d(1, 20, 9, 11, 35, (1, 1), epilogue=("bias", "residual", "relu"))),
        on(
            machine,
            Conv2d(1, 20, 9, 11, 35, (1, 1), (2, 2), epilogue=("gate", "bias", "residual", "sigmoid")),
        ),
    ]
    check_shapes(SPACE, ops, machine, WINOGRAD_ERROR)


def test_method_by_size_of_the_image():
    """Transformed filters are four times as large: with few tiles they cost more than they save."""
    machine = MACHINES["avx512"]
    large = on(machine, Conv2d(1, 64, 56, 56, 64, (3, 3), padding=PAD), "+1,1,1,1")
    assert SPACE.default(large, machine)["method"] == "winograd4"
    small = on(machine, Conv2d(1, 512, 3, 3, 512, (3, 3), padding=PAD), "+1,1,1,1")
    assert SPACE.default(small, machine)["method"] == "direct"
    for op in (dataclasses.replace(large, strides=(3, 3)), dataclasses.replace(large, groups=8)):
        assert SPACE.knobs(op, machine)[0].choices == ("direct",)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("op", "x"),
    [
        (Conv2d(1, 1, 1, 1, 1, (1, 1)), ""),
        (Conv2d(1, 9, 5, 1, 17, (1, 1)), ""),
        (Conv2d(2, 9, 1, 70, 9, (1, 5), padding=(0, 2, 0, 2), epilogue=("bias", "residual")), "+0,2,0,2"),
        (Conv2d(1, 17, 1, 90, 3, (1, 3), (1, 2), dilation=(1, 4)), ""),
        (Conv2d(1, 9, 3, 50, 20, (3, 4), padding=(0, 1, 0, 2)), None),
        (Conv2d(1, 9, 7, 9, 3, (3, 3), dilation=(2, 3)), ""),
        # taps of which most tiles see nothing but zeros, some of all taps
        (Conv2d(1, 9, 7, 29, 9, (3, 3), (1, 1), (6, 19, 6, 19), (6, 19), epilogue=("bias",)), "+6,19,7,19"),
        (Conv2d(1, 9, 4, 5, 9, (3, 2), (2, 1), (9, 8, 9, 8), (9, 7)), None),
        (Conv2d(1, 12, 9, 9, 3, (3, 3), (2, 3), (2, 2, 2, 2), (2, 1)), "+2,3,2,2"),
        # long filters that reach far out of the image, on one side farther than it is wide
        (Conv2d(1, 9, 5, 6, 9, (7, 5), (1, 1), (3, 2, 3, 2), epilogue=("bias",)), "+3,2,3,3"),
        (Conv2d(2, 9, 1, 19, 9, (1, 16), (1, 1), (0, 7, 0, 30)), "+0,7,0,30"),
        (Conv2d(1, 12, 8, 9, 3, (5, 9), (2, 3), (4, 8, 0, 1)), "+4,8,0,1"),
        (Conv2d(1, 3, 20, 20, 5, (4, 4), (4, 4)), None),
        (Conv2d(2, 5, 6, 7, 5, (3, 3), padding=(0, 1, 2, 0)), None),
        (Conv2d(1, 64, 6, 6, 8, (1, 1), padding=PAD, epilogue=("gelu_erf",)), "+1,1,1,1"),
        (Conv2d(1, 32, 6, 7, 32, (3, 3), padding=PAD, groups=8, epilogue=("bias",)), "+1,1,1,1"),
        (Conv2d(1, 32, 6, 7, 64, (3, 3), padding=PAD, groups=2), "+1,1,1,1"),
        (Conv2d(1, 48, 6, 7, 48, (3, 3), padding=PAD, groups=3), "+1,1,1,1"),
        (Conv2d(1, 24, 6, 7, 48, (3, 3), padding=PAD, groups=3), "+1,1,1,1"),
    ],
    ids=str,
)
def test_unusual_shapes(op, x):
    for machine in (AVX2, MACHINES["avx512"]):
        blocked = on(machine, op, x)
        if SPACE.refuses(blocked, machine) is None:
            check_points(SPACE, blocked, [SPACE.default(blocked, machine)], machine, tolerance=WINOGRAD_ERROR)
        else:
            assert op.groups == 3 and machine.lanes == 16


def test_taps_that_find_no_pixel():
    """All outputs are one tile, then each is a tile of its own."""
    shape = BlockedShape(Conv2d(1, 8, 4, 20, 8, (3, 5), (1, 2), (1, 4, 1, 0), x_layout="NCHW8c"), 8)
    assert shape.share_outside(0, 4) == 0.0
    assert shape.share_outside(0, 1) == 2 / (3 * 4)
    assert shape.share_outside(1, 1) == (4 + 2) / (5 * shape.width)
    assert shape.share_outside(1, 2) == 2 / (5 * 5)


@pytest.mark.thorough
def test_threads_share_a_single_row():
    """Zeros around the result are written once, above and below it as well."""
    for machine in (AVX2, MACHINES["avx512"]):
        row = Conv2d(1, 9, 1, 70, 9, (1, 5), padding=(0, 2, 0, 2), epilogue=("bias", "residual", "relu"))
        op = on(machine, row, "+0,2,0,2", "+1,2,3,1", "+0,1,1,0")
        default = SPACE.default(op, machine)
        assert default["blocks"] > 1
        points = [{**default, "blocks": blocks} for blocks in (1, 2, 7)]
        check_points(SPACE, op, points, machine, tolerance=WINOGRAD_ERROR)


@pytest.mark.parametrize(
    ("channels", "filters", "groups", "vectors"),
    [(32, 128, 2, 4), (64, 32, 2, 1), *thorough([(128, 192, 2, 3), (192, 192, 3, 4)]), (48, 64, 2, 1)],
)
def test_a_panel_holds_filters_of_one_group(channels, filters, groups, vectors):
    machine = MACHINES["avx512"]
    op = on(machine, Conv2d(2, channels, 5, 6, filters, (3, 3), padding=PAD, groups=groups), "+1,1,1,1")
    default = SPACE.default(op, machine)
    tiles = {tile[2]: tile for tile in SPACE.knobs(op, machine)[1].choices}
    assert max(tiles) == vectors
    points = [{**default, "tile": tile} for tile in tiles.values()]
    check_points(SPACE, op, points, machine, tolerance=WINOGRAD_ERROR)


@pytest.mark.parametrize("groups", [*thorough([1]), 2])
def test_pixels_are_asked_for_ahead_where_reads_show(groups):
    xeon = dataclasses.replace(MACHINES["avx512"], features=(*MACHINES["avx512"].features, "amx_tile"))
    op = on(xeon, Conv2d(2, 64, 9, 6, 64, (3, 3), (2, 1), PAD, groups=groups, epilogue=("bias",)), "+1,1,1,1")
    point = SPACE.default(op, xeon)
    few, more = (SPACE.emit(op, point, m).script().count("llvm.prefetch") for m in (MACHINES["avx512"], xeon))
    assert few < more
    check_points(SPACE, op, [SPACE.default(op, xeon)], xeon, tolerance=WINOGRAD_ERROR)


@pytest.mark.parametrize("machine", SWEPT)
@pytest.mark.parametrize(
    ("height", "kernel", "halo"),
    [*thorough([(7, (3, 3), "+1,1,1,1")]), (7, (1, 1), ""), (5, (1, 1), "+1,1,1,1")],
)
def test_panels_larger_than_l1_are_taken_in_slices(machine, height, kernel, halo):
    """Slices of one and of several channel blocks, the last of fewer; sums go from each to the next."""
    small = dataclasses.replace(machine, l1=8 << 10, l2=64 << 10)
    padding = PAD if kernel == (3, 3) else (0, 0, 0, 0)
    op = Conv2d(2, 336, height, 6, 70, kernel, (1, 1), padding, epilogue=("bias", "residual", "relu"))
    op = on(small, op, halo, "+1,0,2,1", "+0,1,1,0")
    tiles = [tile for tile in SPACE.knobs(op, small)[1].choices if tile[2] == 2]
    points = [{"method": "direct", "tile": tiles[0], "blocks": b, "groups": g} for b, g in ((1, 2), (2, 1))]
    cut = [BlockedConvKernel(op, PixelTile.of(tiles[0]), p["blocks"], p["groups"], small) for p in points]
    assert any(kernel.slices.count > 2 for kernel in cut)
    check_points(SPACE, op, points, small)


@pytest.mark.thorough
@settings(max_examples=12)
@given(st.data())
def test_random_shapes_and_points(data):
    draw = data.draw
    machine = MACHINES[draw(st.sampled_from(sorted(MACHINES)))]
    op = random_conv2d(draw, draw(st.integers(1, 40)), draw(st.integers(1, 40)))
    op = random_blocks(draw, machine, op)
    assume(SPACE.refuses(op, machine) is None)
    point = {knob.name: draw(st.sampled_from(knob.choices)) for knob in SPACE.knobs(op, machine)}
    check_points(SPACE, op, [point], machine, tolerance=WINOGRAD_ERROR)


def test_default_is_a_choice_and_features_are_finite():
    ops = [
        (Conv2d(1, 64, 56, 56, 64, (3, 3), padding=PAD), "+1,1,1,1"),
        (Conv2d(1, 3, 224, 224, 64, (7, 7), (2, 2), (3, 3, 3, 3)), None),
        (Conv2d(1, 2048, 7, 7, 512, (1, 1)), ""),
        (Conv2d(1, 1, 1, 1, 1, (1, 1)), ""),
    ]
    for machine in MACHINES.values():
        for op, x in ops:
            op = on(machine, op, x)
            assert SPACE.refuses(op, machine) is None
            point = SPACE.default(op, machine)
            SPACE.check(op, point, machine)
            assert np.isfinite(SPACE.features(op, point, machine)).all()


def test_deep_convolutions_of_small_images_use_a_pixel_for_several_vectors():
    """With one vector of filters every product has a broadcast, from lines that L1 does not have."""
    shallow = Conv2d(1, 64, 56, 56, 64, (3, 3), padding=PAD)
    deep = [Conv2d(1, 2048, 7, 7, 512, (1, 1)), Conv2d(1, 1024, 14, 14, 2048, (1, 1), (2, 2))]
    for op, x in [(shallow, "+1,1,1,1"), *((op, "") for op in deep)]:
        _, _, vectors = SPACE.default(on(AVX2, op, x), AVX2)["tile"]
        assert vectors >= 2


def test_refusals():
    assert SPACE.refuses(Softmax((3,), 4), AVX2) == "not a convolution"
    op = Conv2d(1, 8, 5, 5, 8, (3, 3), padding=PAD)
    assert "the result is NCHW" in SPACE.refuses(op, AVX2)
    assert "without the padding" in SPACE.refuses(on(AVX2, op), AVX2)
    wrong = dataclasses.replace(on(AVX2, op), x_layout="NCHW4c+1,1,1,1")
    assert "neither plain nor in blocks of 8" in SPACE.refuses(wrong, AVX2)
    grouped = dataclasses.replace(op, channels=40, filters=5, groups=5)
    assert "do not fit" in SPACE.refuses(on(AVX2, grouped, "+1,1,1,1"), AVX2)
    depthwise = dataclasses.replace(op, groups=8)
    assert SPACE.refuses(on(AVX2, depthwise, "+1,1,1,1"), AVX2) == "depthwise"
    empty = on(AVX2, Conv2d(1, 8, 2, 2, 8, (3, 3)))
    assert SPACE.refuses(empty, AVX2) == "an extent is zero"


def test_nan_spreads_no_further_than_the_window():
    op = on(AVX2, Conv2d(1, 8, 9, 10, 8, (3, 3), (1, 1), PAD, epilogue=("relu",)), "+1,1,1,1")
    direct = {**SPACE.default(op, AVX2), "method": "direct"}
    (run,) = point_runners(SPACE, op, [direct], AVX2)
    x, w = sample_inputs(op)
    x[0, 0, 5, 10] = np.nan
    nans = np.isnan(run(x, w))
    expected = np.zeros_like(nans)
    expected[:, :, 3:6, 8:10] = True
    np.testing.assert_array_equal(nans, expected)


def test_no_heap_for_the_register_tile():
    op = on(AVX2, Conv2d(1, 8, 10, 10, 8, (3, 3), padding=PAD, epilogue=("bias", "relu")), "+1,1,1,1")
    direct = {**SPACE.default(op, AVX2), "method": "direct"}
    assert "TVMBackendAllocWorkspace" not in llvm_of(SPACE.emit(op, direct, AVX2))


@pytest.mark.parametrize(
    "channels, filters, groups, strides",
    [(32, 32, 8, (1, 1)), (24, 48, 3, (2, 1)), (20, 20, 5, (1, 1)), (8, 2, 2, (1, 1))],
)
@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_what_is_no_number_stays_in_its_group(channels, filters, groups, strides, special):
    """Groups share channel blocks: the zeros between them are worth nothing against NaN and infinity."""
    op = on(AVX2, Conv2d(1, channels, 6, 7, filters, (3, 3), strides, PAD, groups=groups, epilogue=("bias",)))
    if SPACE.refuses(op, AVX2) is not None:
        op = on(AVX2, op, "+1,1,1,1")
    x, *rest = sample_inputs(op)
    x = np.abs(x)
    layout = Layout.parse(op.x_layout)
    plain = layout.unpack(x, channels)
    plain[0, 1, 2, 3] = special
    arrays = [layout.pack(plain), *rest]
    (run,) = point_runners(SPACE, op, [SPACE.default(op, AVX2)], AVX2)
    with np.errstate(invalid="ignore"):
        wanted, got = (
            Layout.parse(op.y_layout).unpack(y, filters) for y in (op.reference(*arrays), run(*arrays))
        )
    assert not np.isfinite(wanted).all()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
