"""1x1 convolutions and the depthwise ones behind as one operator, and the reasons of those that stay two."""

import dataclasses

import pytest

from hetero_tvm.host.tvm import relax
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.expand_depthwise import ExpandDepthwise
from hetero_tvm.relax_passes.fusions.convolutions.expansions import FuseExpansions
from tests.relax_passes.graphs import constant, contracts, fuse, module, weights
from tests.relax_passes.rewrite import Rewrite, kernel

BLOCK, BETWEEN = "NCHW8c", "NCHW8c+1,1,1,1"
EXPAND = Conv2d(1, 8, 6, 5, 16, (1, 1), epilogue=("bias", "relu6"), x_layout=BLOCK, y_layout=BETWEEN)
DEPTHWISE = Conv2d(
    *(1, 16, 6, 5, 16, (3, 3), (2, 2), (1, 1, 1, 1)),
    groups=16,
    epilogue=("bias",),
    x_layout=BETWEEN,
    y_layout=BLOCK,
)
CONSTANTS = weights(16, 8, 1, 1), weights(16), weights(16, 1, 3, 3), weights(16)


def always(*ops):
    return True


class TestFuseExpansions(Rewrite):
    rule = FuseExpansions(always, always)
    inputs = {"x": (1, 1, 6, 5, 8)}

    def before(self, x):
        wide = kernel(EXPAND, x, *map(constant, CONSTANTS[:2]))
        return kernel(DEPTHWISE, wide, *map(constant, CONSTANTS[2:]))

    def expected(self, x):
        return kernel(ExpandDepthwise.of(EXPAND, DEPTHWISE), x, *map(constant, CONSTANTS))


DILATED = dataclasses.replace(DEPTHWISE, dilation=(2, 2), padding=(1, 1, 1, 1))
RESIDUAL = dataclasses.replace(DEPTHWISE, epilogue=("residual",), strides=(1, 1), residual_layout=BETWEEN)


@pytest.mark.parametrize(
    "depthwise, claimed, paid, reason",
    [
        (DEPTHWISE, False, True, "no kernel takes expand_depthwise_8x6x5_16_bias_relu6_k3x3s2_bias"),
        (DEPTHWISE, True, False, "the two take less time one after the other"),
        (DILATED, True, True, "the depthwise convolution is dilated"),
        (RESIDUAL, True, True, "the image between the two has other readers"),
    ],
)
def test_reasons(depthwise, claimed, paid, reason):
    def body(emit, x):
        wide = emit(kernel(EXPAND, x, *map(relax.const, CONSTANTS[:2])))
        last = wide if depthwise is RESIDUAL else relax.const(CONSTANTS[3])
        return emit(kernel(depthwise, wide, relax.const(CONSTANTS[2]), last))

    made = module({"x": EXPAND.inputs[0].shape}, body)
    after, _, report = fuse(made, FuseExpansions(lambda op: claimed, lambda *ops: paid))
    assert len(contracts(after, "conv2d")) == 2 and not contracts(after, "expand_depthwise")
    assert [reason in miss["reason"] for miss in report.misses] == [True]
