"""Products whose weights are stored in few bits: which, which not and why, and what they compute."""

import numpy as np
import pytest

from hetero_tvm.ops.decoding.storage import Storage, quantized
from hetero_tvm.ops.integers.stored_matmul import StoredMatmul
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.relax_passes.fusions.gated_matmul import FuseGatedMatmul
from hetero_tvm.relax_passes.fusions.integers.stored_weights import StoreWeights
from hetero_tvm.relax_passes.fusions.matmul import FuseMatmul
from hetero_tvm.relax_passes.fusions.silu import FuseSilu
from tests.relax_passes.graphs import calls, constant, contracts, evaluate, fuse, module, op, weights
from tests.relax_passes.rewrite import Rewrite, kernel

W = weights(64, 96)
INT4 = Storage.named("int4")


def store(storage=INT4, **options):
    return StoreWeights(options.pop("claims", lambda op: True), storage, **options)


def product(emit, x, w=W):
    return emit(op.add(emit(op.matmul(x, constant(w))), constant(weights(w.shape[1]))))


def test_numbers():
    after, _, report = fuse(module({"x": (2, 3, 64)}, product), FuseMatmul(), store())
    assert calls(after) == {"stored_matmul": 1} and not report.misses
    (contract,) = contracts(after, "stored_matmul")
    assert (contract.lead, contract.n, contract.k, contract.epilogue) == ((2, 3), 96, 64, ("bias",))
    x = weights(2, 3, 64, seed=3)
    (y,) = evaluate(after, [x])
    wanted = x @ quantized(np.ascontiguousarray(W.T), INT4).dequantized().T + weights(96)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)


def test_gated_product():
    def body(emit, x):
        gate = emit(op.matmul(x, constant(W)))
        up = emit(op.matmul(x, constant(weights(64, 96, seed=1))))
        return emit(op.multiply(emit(op.nn.silu(gate)), up))

    after, _, _ = fuse(module({"x": (5, 64)}, body), FuseSilu(), FuseGatedMatmul(), FuseMatmul(), store())
    (contract,) = contracts(after, "stored_matmul")
    assert contract.gate == "silu" and contract.columns == 192


@pytest.mark.parametrize(
    "w, rows, storage, options, reason",
    [
        (W, 4, INT4, {"kept": frozenset({"matmul"})}, "matmul is kept in float32"),
        (W, 4, INT4, {"claims": lambda op: False}, "the target has no kernel for it"),
        (weights(64, 8), 4, INT4, {}, "64 x 8 weights are too few to count in memory"),
        (weights(24, 96), 4, Storage.named("int8"), {}, "24 weights of a column are less than a group"),
        (W, 9, Storage("f16"), {}, "9 rows: float32 weights are faster, halves up to 8 rows only"),
        (np.full_like(W, np.nan), 4, INT4, {}, "a weight is not finite"),
        (W * 1e6, 4, Storage("f16"), {}, "is beyond the range of f16"),
    ],
)
def test_misses(w, rows, storage, options, reason):
    before = module({"x": (rows, len(w))}, lambda emit, x: product(emit, x, w))
    after, _, report = fuse(before, FuseMatmul(), store(storage, **options))
    assert calls(after) == {"matmul": 1}
    (miss,) = report.misses
    assert miss["reason"].endswith(reason)


def test_groups_fit_short_columns():
    after, _, _ = fuse(module({"x": (4, 64)}, product), FuseMatmul(), store(Storage.named("int8")))
    (contract,) = contracts(after, "stored_matmul")
    assert contract.group == 64


class TestStoreWeights(Rewrite):
    rule = store(Storage("f16"), rounded=lambda form, rows: 0)
    inputs = {"x": (4, 64), "r": (4, 96)}
    bias = weights(96)

    def before(self, x, r):
        return kernel(Matmul((4,), 96, 64, ("bias", "residual")), x, constant(W), constant(self.bias), r)

    def expected(self, x, r):
        stored = StoredMatmul((4,), 96, 64, ("bias", "residual"), "f16")
        return kernel(stored, x, constant(np.ascontiguousarray(W.T), "float16"), constant(self.bias), r)
