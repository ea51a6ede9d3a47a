"""Convolutions of volumes as those of images: the same numbers."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax
from hetero_tvm.ops.volumes.slice_windows import SliceWindows
from hetero_tvm.relax_passes.forms.volumes.conv3d import Conv3dAsConv2d
from tests.relax_passes.compiled import check_convolution
from tests.relax_passes.graphs import calls, constant, fuse, module, op, weights
from tests.relax_passes.rewrite import Rewrite, kernel

CASES = {
    "conv3d": (
        (2, 3, 5, 6, 7),
        lambda x: relax.op.nn.conv3d(x, constant(weights(4, 3, 3, 3, 3)), strides=2, padding=1),
    ),
    "conv3d dilated, grouped": (
        (1, 6, 7, 5, 5),
        lambda x: relax.op.nn.conv3d(
            x, constant(weights(4, 3, 2, 3, 1)), padding=(1, 0, 2, 0, 1, 0), dilation=(3, 1, 2), groups=2
        ),
    ),
    "one slice": ((1, 2, 1, 4, 4), lambda x: relax.op.nn.conv3d(x, constant(weights(2, 2, 1, 3, 3)))),
}


@pytest.mark.thorough
@pytest.mark.parametrize("shape, build", CASES.values(), ids=CASES.keys())
def test_the_numbers_stay(shape, build):
    check_convolution(shape, build, [Conv3dAsConv2d()])


def test_depthwise_ones_stay_unless_they_are_taken():
    w = constant(weights(4, 1, 3, 3, 3))
    made = module({"x": (1, 4, 3, 5, 5)}, lambda emit, x: emit(op.nn.conv3d(x, w, groups=4)))
    assert calls(fuse(made, Conv3dAsConv2d())[0]) == {"conv3d": 1}
    found = calls(fuse(made, Conv3dAsConv2d(lambda op: True))[0])
    assert found["conv2d"] == found["slice_windows"] == 1 and "conv3d" not in found


class TestConv3dAsConv2d(Rewrite):
    rule = Conv3dAsConv2d()
    inputs = {"x": (1, 2, 4, 5, 5)}
    w = np.arange(2 * 2 * 2 * 9, dtype="float32").reshape(2, 2, 2, 3, 3)

    def before(self, x):
        y = op.nn.conv3d(x, constant(self.w), strides=(2, 1, 1), padding=(0, 1, 1, 0, 1, 1))
        return op.add(y, constant(np.float32([1, 2]).reshape(1, 2, 1, 1, 1)))

    def expected(self, x):
        images = op.reshape(op.permute_dims(x, [0, 2, 1, 3, 4]), (4, 2, 5, 5))
        windows = kernel(SliceWindows(1, 4, 2, 5, 5, taps=2, step=2), images)
        w = constant(self.w.transpose(0, 2, 1, 3, 4).reshape(2, 4, 3, 3))
        y = op.nn.conv2d(windows, w, strides=(1, 1), padding=(1, 1, 1, 1), dilation=(1, 1))
        y = op.add(y, constant(np.float32([1, 2]).reshape(1, 2, 1, 1)))
        return op.permute_dims(op.reshape(y, (1, 2, 2, 5, 5)), [0, 2, 1, 3, 4])


class TestZerosAround(Rewrite):
    """Zeros around a volume become those of the convolution; filters of one slice need no windows."""

    rule = Conv3dAsConv2d()
    inputs = {"x": (2, 2, 4, 5, 5)}

    def before(self, x):
        padded = op.nn.pad(x, [0, 0, 0, 0, 2, 0, 1, 1, 0, 1])
        y = op.nn.conv3d(padded, constant(weights(3, 2, 3, 2, 2)), padding=(0, 1, 0, 0, 0, 0))
        return y, op.nn.conv3d(x, constant(weights(3, 2, 1, 2, 2)))

    def expected(self, x):
        images = op.reshape(op.permute_dims(x, [0, 2, 1, 3, 4]), (8, 2, 5, 5))
        windows = kernel(SliceWindows(2, 4, 2, 5, 5, taps=3, before=2), images)
        flat = weights(3, 2, 3, 2, 2).transpose(0, 2, 1, 3, 4).reshape(3, 6, 2, 2)
        y = op.nn.conv2d(windows, constant(flat), padding=(2, 0, 1, 1))
        y = op.permute_dims(op.reshape(y, (2, 4, 3, 7, 5)), [0, 2, 1, 3, 4])
        images = op.reshape(op.permute_dims(x, [0, 2, 1, 3, 4]), (8, 2, 5, 5))
        z = op.nn.conv2d(images, constant(weights(3, 2, 1, 2, 2).reshape(3, 2, 2, 2)))
        return y, op.permute_dims(op.reshape(z, (2, 4, 3, 4, 4)), [0, 2, 1, 3, 4])
