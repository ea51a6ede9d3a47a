import pytest

from hetero_tvm.ops.pool2d import Pool2d
from hetero_tvm.schedules.npu.images.pool2d import NpuPool2dSpace
from tests.schedules.npu.running import assert_close, machine

SAME = (1, 1, 1, 1)


@pytest.mark.parametrize(
    "op",
    [
        Pool2d(1, 20, 9, 9, (3, 3), (2, 2), SAME, (5, 5), "max"),
        Pool2d(2, 16, 8, 6, (2, 2), (2, 2), (0, 0, 0, 0), (4, 3), "avg"),
        Pool2d(1, 48, 7, 7, (7, 7), (1, 1), (0, 0, 0, 0), (1, 1), "avg"),
        Pool2d(1, 8, 5, 5, (3, 3), (1, 1), SAME, (5, 5), "avg", count_padding=True),
        # Every window divides by the places that it covers.
        Pool2d(1, 8, 5, 5, (3, 3), (1, 1), SAME, (5, 5), "avg"),
        Pool2d(2, 5, 9, 70, (3, 2), (2, 2), (1, 0, 1, 1), (5, 35), "avg"),
        Pool2d(1, 17, 4, 700, (3, 3), (2, 2), SAME, (2, 350), "max"),
    ],
    ids=lambda op: op.label,
)
def test_any_tile_keeps_the_contract(op):
    space, mach = NpuPool2dSpace(), machine()
    choices = space.knobs(op, mach)[0].choices
    for tile in choices[:: max(1, len(choices) // 2)]:
        assert_close(space, op, mach, point={"tile": tile})
