import pytest

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.schedules.npu.images.depthwise import NpuDepthwiseSpace
from tests.schedules.npu.running import assert_close, machine

SAME = (1, 1, 1, 1)


@pytest.mark.parametrize(
    "op",
    [
        Conv2d(1, 24, 9, 9, 24, (3, 3), (1, 1), SAME, groups=24, epilogue=("bias", "relu6")),
        Conv2d(2, 40, 12, 7, 40, (3, 3), (2, 2), SAME, groups=40, epilogue=("residual", "bias", "silu")),
        Conv2d(1, 7, 8, 8, 7, (5, 3), (1, 2), (2, 1, 2, 1), groups=7),
        Conv2d(1, 1, 1, 1, 1, (1, 1), groups=1, epilogue=("bias",)),
    ],
    ids=lambda op: op.label,
)
def test_any_tile_keeps_the_contract(op):
    space, mach = NpuDepthwiseSpace(), machine()
    choices = space.knobs(op, mach)[0].choices
    for tile in choices[:: max(1, len(choices) // 4)]:
        assert_close(space, op, mach, point={"tile": tile})
