"""Convolution by Winograd's method: partial tiles, blocks of tiles, halos, rounding."""

import pytest

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.schedules.cpu.images.conv2d_blocked import WINOGRAD, BlockedConv2dSpace
from tests.schedules.cpu.images.helpers import PAD, WINOGRAD_ERROR, on
from tests.schedules.cpu.running import MACHINES, SWEPT, check_points

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
