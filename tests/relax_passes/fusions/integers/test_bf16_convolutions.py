"""Convolutions in bfloat16: which, which not and why, and what they compute."""

import ml_dtypes
import numpy as np
import pytest

from hetero_tvm.host import constants
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.integers.bf16_conv2d import Bf16Conv2d
from hetero_tvm.relax_passes.fusions.convolutions.conv2d import FuseConv2d
from hetero_tvm.relax_passes.fusions.integers.bf16_convolutions import RoundConvolutions
from tests.relax_passes.graphs import calls, constant, contracts, evaluate, fuse, module, op, weights
from tests.relax_passes.rewrite import Rewrite, kernel

W = weights(8, 6, 3, 3)


def convolution(w=W):
    def body(emit, x):
        y = emit(op.nn.conv2d(x, constant(w), padding=(1, 1, 1, 1)))
        return emit(op.nn.relu(emit(op.add(y, constant(weights(8, 1, 1))))))

    return module({"x": (1, 6, 5, 7)}, body)


def rounding(**options):
    return RoundConvolutions(
        options.pop("claims", lambda op: True), options.pop("pays", lambda op: True), **options
    )


def test_numbers():
    after, _, report = fuse(convolution(), FuseConv2d(), rounding())
    assert calls(after) == {"bf16_conv2d": 1} and not report.misses
    (contract,) = contracts(after, "bf16_conv2d")
    assert contract.epilogue == ("bias", "relu")
    x = weights(1, 6, 5, 7, seed=3)
    (y,) = evaluate(after, [x])
    half, bias = W.astype(ml_dtypes.bfloat16), weights(8, 1, 1).reshape(-1)
    np.testing.assert_allclose(y, contract.reference(x.astype(np.float64), half, bias), atol=1e-5)


@pytest.mark.parametrize(
    "w, options, reason",
    [
        (W, {"kept": frozenset({"conv2d"})}, "conv2d is kept in float32"),
        (W, {"claims": lambda op: False}, "the target has no kernel of bfloat16 for it"),
        (W, {"pays": lambda op: False}, "its float32 kernel is as fast"),
        (np.full_like(W, np.inf), {}, "a weight is not finite in bfloat16"),
        (np.full_like(W, 3.4e38), {}, "a weight is not finite in bfloat16"),
    ],
)
def test_misses(w, options, reason):
    after, _, report = fuse(convolution(w), FuseConv2d(), rounding(**options))
    assert calls(after) == {"conv2d": 1}
    (miss,) = [miss for miss in report.misses if miss["rule"] == "bf16_convolutions"]
    assert miss["reason"] == reason


class TestRewrite(Rewrite):
    rule = rounding()
    inputs = {"x": (1, 6, 5, 7)}
    contract = Conv2d(1, 6, 5, 7, 8, (3, 3), padding=(1, 1, 1, 1))

    def before(self, x):
        return kernel(self.contract, x, constant(W))

    def expected(self, x):
        return kernel(Bf16Conv2d.of(self.contract), x, constants.constant(W.astype(ml_dtypes.bfloat16)))
