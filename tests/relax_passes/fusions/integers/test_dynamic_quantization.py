"""Products that become 8-bit ones: which, which not and why, and what they compute."""

import numpy as np
import pytest

from hetero_tvm.ops.integers.dynamic_matmul import DynamicMatmul, quantized_rows, quantized_weights
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.relax_passes.fusions.gated_matmul import FuseGatedMatmul
from hetero_tvm.relax_passes.fusions.integers.dynamic_quantization import QuantizeDynamically
from hetero_tvm.relax_passes.fusions.matmul import FuseMatmul
from hetero_tvm.relax_passes.fusions.silu import FuseSilu
from tests.relax_passes.graphs import calls, constant, contracts, evaluate, fuse, module, op, weights
from tests.relax_passes.rewrite import Rewrite, kernel

W = weights(48, 40)


def quantize(**options):
    return QuantizeDynamically(options.pop("claims", lambda op: True), options.pop("safe", 0), **options)


def product(emit, x, w=W):
    return emit(op.add(emit(op.matmul(x, constant(w))), constant(weights(w.shape[1]))))


def test_product_with_its_bias():
    before = module({"x": (2, 3, 48)}, product)
    after, _, report = fuse(before, FuseMatmul(), quantize())
    assert calls(after) == {"dynamic_matmul": 1} and not report.misses
    assert report.fusions == {"matmul_epilogue": 1, "dynamic_quantization": 1}
    (contract,) = contracts(after, "dynamic_matmul")
    assert (contract.lead, contract.n, contract.k, contract.epilogue) == ((2, 3), 40, 48, ("bias",))


def test_gated_product():
    def body(emit, x):
        gate = emit(op.matmul(x, constant(W)))
        up = emit(op.matmul(x, constant(weights(48, 40, seed=1))))
        return emit(op.multiply(emit(op.nn.silu(gate)), up))

    after, _, _ = fuse(module({"x": (5, 48)}, body), FuseSilu(), FuseGatedMatmul(), FuseMatmul(), quantize())
    assert calls(after) == {"dynamic_gated_matmul": 1}


@pytest.mark.parametrize("safe", [0, 1, 2])
def test_numbers(safe):
    before = module({"x": (4, 48)}, product)
    after, _, _ = fuse(before, FuseMatmul(), quantize(safe=safe))
    x = weights(4, 48, seed=3)
    q, scale = quantized_weights(W, safe)
    u, step, zero = quantized_rows(x)
    wanted = ((u - zero) @ q.astype(np.float64)) * (step * scale) + weights(40)
    (y,) = evaluate(after, [x])
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(y, x @ W + weights(40), atol=0.6)


@pytest.mark.parametrize(
    "w, options, reason",
    [
        (W, {"kept": frozenset({"matmul"})}, "matmul is kept in float32"),
        (W, {"claims": lambda op: False}, "the target has no kernel for it"),
        (weights(16, 40), {}, "16 x 40 weights are too few to win by 8 bits"),
        (weights(48, 8), {}, "48 x 8 weights are too few to win by 8 bits"),
        (np.full((48, 40), np.inf, "float32"), {}, "a weight is not finite"),
    ],
)
def test_misses(w, options, reason):
    before = module({"x": (4, len(w))}, lambda emit, x: product(emit, x, w))
    after, _, report = fuse(before, FuseMatmul(), quantize(**options))
    assert calls(after) == {"matmul": 1}
    assert [miss["reason"] for miss in report.misses] == [reason]


class TestQuantizeDynamically(Rewrite):
    rule = quantize()
    inputs = {"x": (4, 48), "r": (4, 40)}
    bias = weights(40)

    def before(self, x, r):
        return kernel(Matmul((4,), 40, 48, ("bias", "residual")), x, constant(W), constant(self.bias), r)

    def expected(self, x, r):
        q, scale = quantized_weights(W, False)
        dynamic = DynamicMatmul((4,), 40, 48, ("bias", "residual"))
        return kernel(dynamic, x, constant(q, "int8"), constant(scale), constant(self.bias), r)
