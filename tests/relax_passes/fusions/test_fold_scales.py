"""Factors around products go into weights, and only where nobody else sees the unscaled value."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.api import build_model, optimize_model
from hetero_tvm.frontend import import_onnx
from hetero_tvm.relax_passes.fusions.fold_scales import FoldInputScales, FoldOutputScales
from tests.frontend.onnx.helpers import run_onnxruntime, text_model
from tests.relax_passes.graphs import calls, constant, fuse, module, names_of, op, same_numbers, weights
from tests.relax_passes.rewrite import Rewrite

X = {"x": (2, 3, 6)}
W, B = weights(6, 4), weights(4)
RULES = (FoldOutputScales(), FoldInputScales())


def folded(body, left, inputs=X):
    before = module(inputs, body)
    after, names, report = fuse(before, *RULES)
    assert dict(calls(after)) == left and not report.fusions and not report.misses
    assert names_of(before) <= set().union(*names.values())
    same_numbers(before, after)


FACTORS = [3.0, [2.0], weights(4, seed=3), weights(1, 4, seed=3), weights(1, 1, 4, seed=3)]


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("divide", [False, True])
def test_after_the_product(factor, bias, divide):
    def body(emit, x):
        y = emit(op.matmul(x, constant(W)))
        y = emit(op.add(constant(B), y)) if bias else y
        return emit(op.divide(y, constant(factor)) if divide else op.multiply(constant(factor), y))

    folded(body, {"matmul": 1, "add": 1} if bias else {"matmul": 1})


def test_through_a_reshape():
    def body(emit, x):
        y = emit(op.matmul(emit(op.reshape(x, (6, 6))), constant(W)))
        y = emit(op.add(emit(op.reshape(y, (2, 3, 4))), constant(B)))
        return emit(op.tanh(emit(op.multiply(y, constant(weights(4, seed=3))))))

    folded(body, {"reshape": 2, "matmul": 1, "add": 1, "tanh": 1})


@pytest.mark.parametrize("factor", [0.25, weights(6, seed=4), weights(1, 6, seed=4)])
@pytest.mark.parametrize("divide", [False, True])
def test_before_the_product(factor, divide):
    def body(emit, x):
        x = emit(op.tanh(x))
        x = emit(op.divide(x, constant(factor)) if divide else op.multiply(x, constant(factor)))
        return emit(op.matmul(x, constant(W)))

    folded(body, {"tanh": 1, "matmul": 1})


def test_a_transposed_weight():
    def body(emit, x):
        y = emit(op.matmul(x, emit(op.permute_dims(constant(weights(4, 6))))))
        return emit(op.multiply(y, constant(2.0)))

    folded(body, {"matmul": 1})


@pytest.mark.parametrize("which", ["product", "biased"])
def test_used_unscaled_as_well(which):
    def body(emit, x):
        product = emit(op.matmul(x, constant(W)))
        biased = emit(op.add(product, constant(B)))
        return emit(op.multiply(biased, constant(2.0))), {"product": product, "biased": biased}[which]

    folded(body, {"matmul": 1, "add": 1, "multiply": 1})


@pytest.mark.parametrize(
    "factor", [weights(3, 1), weights(2, 1, 1), weights(2, 3, 4), [0.0], [1.0, 0.0, 1.0, 1.0], np.inf, np.nan]
)
def test_other_factors_stay(factor):
    before = module(X, lambda e, x: e(op.multiply(e(op.matmul(x, constant(W))), constant(factor))))
    after, _, _ = fuse(before, *RULES)
    assert calls(after) == calls(before)


def test_a_constant_over_the_product_stays():
    folded(
        lambda e, x: e(op.divide(constant(weights(4)), e(op.exp(e(op.matmul(x, constant(W))))))),
        {"matmul": 1, "exp": 1, "divide": 1},
    )
    folded(lambda e, x: e(op.divide(constant(2.0), e(op.matmul(x, constant(W))))), {"matmul": 1, "divide": 1})


def test_a_layer_scale_and_its_residual_are_one_kernel():
    def body(emit, x, r):
        y = emit(op.add(emit(op.matmul(x, constant(W))), constant(B)))
        return emit(op.add(emit(op.multiply(y, constant(weights(4, seed=3)))), r))

    before = module({**X, "r": (2, 3, 4)}, body)
    after, _, report = fuse(before)
    assert dict(calls(after)) == {"matmul": 1} and report.fusions == {"matmul_epilogue": 1}
    same_numbers(before, after)


@settings(max_examples=15)
@given(st.data())
def test_random_products(data):
    m, k, n = (data.draw(st.integers(1, 6)) for _ in range(3))
    inside = data.draw(st.sampled_from([None, (), (k,), (1, k)]))
    outside = data.draw(st.sampled_from([None, (), (n,), (1, n)]))

    def body(emit, x):
        if inside is not None:
            x = emit(op.multiply(x, constant(weights(*inside, seed=5))))
        y = emit(op.add(emit(op.matmul(x, constant(weights(k, n)))), constant(weights(n))))
        return y if outside is None else emit(op.multiply(y, constant(weights(*outside, seed=6))))

    folded(body, {"matmul": 1, "add": 1}, {"x": (m, k)})


@pytest.mark.parametrize("condition", [False, True])
def test_a_branch_reads_the_scaled_product(condition):
    source = text_model("""
        g (bool c, float[2, 2] x) => (float[2, 3] y)
        < float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] s = {2, 3, 0.5} >
        { p = MatMul(x, w)
          m = Mul(p, s)
          y = If(c) <then_branch = t () => (float[2, 3] a) { a = Tanh(m) },
                     else_branch = e () => (float[2, 3] b) { b = Sigmoid(m) }> }""")
    given = {"c": np.array(condition), "x": np.float32([[0.1, -0.2], [0.3, 0.05]])}
    built = build_model(optimize_model(import_onnx(source)), use_shipped=False)
    np.testing.assert_allclose(built.run(given)[0], run_onnxruntime(source, given)[0], rtol=1e-5)


class TestFoldOutputScales(Rewrite):
    rule = FoldOutputScales()

    def before(self, x):
        y = op.add(op.matmul(x, constant(weights(4, 5))), constant(weights(5)))
        return op.multiply(y, constant(0.5))

    def expected(self, x):
        return op.add(op.matmul(x, constant(0.5 * weights(4, 5))), constant(0.5 * weights(5)))


class TestFoldInputScales(Rewrite):
    rule = FoldInputScales()

    def before(self, x):
        return op.matmul(op.multiply(x, constant([1.0, 2.0, 4.0, 8.0])), constant(weights(4, 5)))

    def expected(self, x):
        return op.matmul(x, constant(weights(4, 5) * np.float32([[1], [2], [4], [8]])))
