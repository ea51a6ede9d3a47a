"""Transposed convolutions of volumes as those of images: the same numbers."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.forms.conv_transpose import ConvTransposeAsPhases
from hetero_tvm.relax_passes.forms.volumes.conv_transpose3d import ConvTranspose3dAsConvTranspose2d
from tests.relax_passes.compiled import check_convolution
from tests.relax_passes.graphs import calls, constant, fuse, module, op, weights
from tests.relax_passes.rewrite import Rewrite

CASES = {
    "filters as deep as the stride": ((2, 3, 3, 4, 5), (3, 4, 2, 2, 2), {"strides": 2}),
    "overlap": ((1, 3, 4, 3, 3), (3, 2, 4, 3, 3), {"strides": (2, 1, 2), "padding": (1, 1, 1, 1, 1, 1)}),
    "no stride": ((1, 2, 4, 3, 3), (2, 3, 3, 3, 3), {"padding": (2, 0, 1, 0, 1, 0)}),
    "groups, dilation": (
        (1, 4, 3, 3, 4),
        (4, 3, 2, 2, 3),
        {"groups": 2, "dilation": (2, 1, 2), "strides": (3, 2, 1), "output_padding": (1, 1, 0)},
    ),
    "cut": ((2, 3, 4, 3, 3), (3, 2, 3, 2, 2), {"strides": 2, "padding": (1, 0, 0, 1, 0, 0)}),
    "one slice": ((1, 2, 1, 3, 3), (2, 2, 1, 3, 3), {"strides": (2, 1, 1), "output_padding": (1, 0, 0)}),
}


@pytest.mark.thorough
@pytest.mark.parametrize("shape, filters, attributes", CASES.values(), ids=CASES.keys())
def test_the_numbers_stay(shape, filters, attributes):
    check_convolution(
        shape,
        lambda x: relax.op.nn.conv3d_transpose(x, constant(weights(*filters)), **attributes),
        [ConvTranspose3dAsConvTranspose2d(), ConvTransposeAsPhases()],
    )


def test_the_bias_goes_along():
    w, bias = constant(weights(3, 2, 2, 2, 2)), constant(np.float32([1, 2]).reshape(1, 2, 1, 1, 1))
    made = module(
        {"x": (1, 3, 2, 3, 3)},
        lambda emit, x: emit(op.add(emit(op.nn.conv3d_transpose(x, w, strides=2)), bias)),
    )
    found = calls(fuse(made, ConvTranspose3dAsConvTranspose2d())[0])
    assert found["conv2d_transpose"] == 1 and "conv3d_transpose" not in found


class TestConvTranspose3dAsConvTranspose2d(Rewrite):
    rule = ConvTranspose3dAsConvTranspose2d()
    inputs = {"x": (1, 2, 3, 4, 5)}
    filters = weights(2, 3, 1, 2, 2)

    def before(self, x):
        return op.nn.conv3d_transpose(x, constant(self.filters))

    def expected(self, x):
        images = op.reshape(op.permute_dims(x, [0, 2, 1, 3, 4]), (3, 2, 4, 5))
        y = op.nn.conv2d_transpose(images, constant(self.filters[:, :, 0]), padding=(0, 0, 0, 0))
        y = op.reshape(op.reshape(y, (3, 3, 5, 6)), (1, 3, 3, 5, 6))
        return op.permute_dims(y, [0, 2, 1, 3, 4])
