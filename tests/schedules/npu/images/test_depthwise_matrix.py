import numpy as np
import pytest

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.schedules.npu.images.depthwise_matrix import NpuDepthwiseMatrixSpace
from tests.schedules.npu.running import assert_close, machine, run, sample

SPACE = NpuDepthwiseMatrixSpace()
SAME = (1, 1, 1, 1)


def depthwise(channels, height, width, kernel=(3, 3), strides=(1, 1), padding=SAME, **more):
    image = (more.pop("batch", 1), channels, height, width)
    return Conv2d(*image, channels, kernel, strides, padding, groups=channels, **more)


CASES = [
    depthwise(24, 9, 9, epilogue=("bias", "relu6")),
    depthwise(40, 12, 7, strides=(2, 2), batch=2, epilogue=("residual", "bias", "silu")),
    depthwise(7, 8, 8, (5, 3), (1, 2), (2, 1, 2, 1)),
    depthwise(1, 1, 1, (1, 1), padding=(0,) * 4, epilogue=("bias",)),
    depthwise(33, 13, 5, epilogue=("bias", "residual", "relu")),
    depthwise(16, 11, 11, dilation=(2, 2), padding=(2,) * 4),
]


@pytest.mark.parametrize("preset", ["edge", "mobile", "datacenter"])
@pytest.mark.parametrize("op", CASES, ids=lambda op: op.label)
def test_any_tile_keeps_the_contract(op, preset):
    mach = machine(preset)
    choices = SPACE.knobs(op, mach)[0].choices
    for tiles in choices[:: max(1, len(choices) // 3)]:
        assert_close(SPACE, op, mach, point={"tiles": tiles})


def test_bfloat16():
    assert_close(SPACE, depthwise(48, 10, 10, epilogue=("bias",)), machine("mobile", "bfloat16"))


def test_channels_do_not_meet():
    """Every product of two channels is with a zero."""
    op = depthwise(32, 6, 6)
    image, weights = sample(op)
    image[:, 5] *= 1000
    got, _ = run(SPACE, op, machine("mobile"), [image, weights])
    image[:, 5] = 0
    without, _ = run(SPACE, op, machine("mobile"), [image, weights])
    others = np.arange(32) != 5
    assert np.array_equal(got[:, others], without[:, others]) and np.any(got[:, 5])


def test_refusals_say_why():
    mach = machine("mobile")
    assert "is for depthwise" in SPACE.refuses(Conv2d(1, 8, 5, 5, 8, (3, 3)), mach)
    assert SPACE.refuses(depthwise(96, 28, 28), mach) is None
    many_weights = depthwise(960, 7, 7, (5, 5), padding=(2,) * 4)
    assert "vector unit takes less time" in SPACE.refuses(many_weights, mach)
    large_window = depthwise(64, 20, 20, (9, 9), padding=(4,) * 4)
    assert "do not fit" in SPACE.refuses(large_window, machine("datacenter"))
