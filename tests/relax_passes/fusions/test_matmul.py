"""Bias, activations and residuals join a product with a constant weight in order; nothing else does."""

import numpy as np
import pytest

from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.relax_passes.fusions.matmul import FuseMatmul
from tests.relax_passes.graphs import (
    bindings,
    calls,
    constant,
    contracts,
    fuse,
    module,
    names_of,
    op,
    same_numbers,
    weights,
)
from tests.relax_passes.rewrite import Rewrite, kernel

W, B = constant(weights(6, 4)), constant(weights(4))
X = {"x": (2, 3, 6)}


def fused(body, inputs=X, fusions=1):
    before = module(inputs, body)
    after, names, report = fuse(before, FuseMatmul())
    assert report.fusions.get("matmul_epilogue", 0) == fusions
    same_numbers(before, after)
    covered = set().union(*names.values())
    assert names_of(before) <= covered
    return after, report


@pytest.mark.parametrize(
    ("function", "step"),
    [
        (op.nn.relu, "relu"),
        (op.nn.gelu, "gelu_erf"),
        (op.nn.gelu_tanh, "gelu_tanh"),
        (op.nn.silu, "silu"),
        (op.sigmoid, "sigmoid"),
        (op.tanh, "tanh"),
    ],
)
def test_bias_activation_residual(function, step):
    def body(emit, x, r):
        y = emit(function(emit(op.add(B, emit(op.matmul(x, W))))))
        return emit(op.add(r, y))

    after, _ = fused(body, {"x": (2, 3, 6), "r": (2, 3, 4)})
    (found,) = contracts(after, "matmul")
    assert found.epilogue == ("bias", step, "residual") and calls(after) == {"matmul": 1}
    assert (found.lead, found.n, found.k) == ((2, 3), 4, 6)


@pytest.mark.parametrize("shape", [(4,), (1, 4), (1, 1, 4)])
def test_bias_of_any_rank(shape):
    after, _ = fused(lambda e, x: e(op.add(e(op.matmul(x, W)), constant(weights(*shape)))))
    assert contracts(after, "matmul")[0].epilogue == ("bias",)


def test_a_full_constant_is_no_bias():
    after, _ = fused(lambda e, x: e(op.add(e(op.matmul(x, W)), constant(weights(2, 3, 4)))))
    assert contracts(after, "matmul")[0].epilogue == () and calls(after)["add"] == 1


def test_a_constant_that_raises_the_rank_is_no_bias():
    after, _ = fused(lambda e, x: e(op.add(e(op.matmul(x, W)), constant(weights(1, 1, 1, 4)))))
    assert contracts(after, "matmul")[0].epilogue == ()


def test_a_row_of_rows_is_no_bias():
    """[4, 1] has four values as well, but adds them to rows."""
    after, _ = fused(lambda e, x: e(op.add(e(op.matmul(x, W)), constant(weights(4, 1)))), {"x": (4, 6)})
    assert contracts(after, "matmul")[0].epilogue == ()


def test_reshape_between_product_and_bias():
    def body(emit, x, r):
        y = emit(op.matmul(emit(op.reshape(x, (6, 6))), W))
        y = emit(op.add(emit(op.reshape(y, (2, 3, 4))), B))
        return emit(op.add(emit(op.reshape(y, (3, 2, 4))), r))

    after, _ = fused(body, {"x": (2, 3, 6), "r": (3, 2, 4)})
    (found,) = contracts(after, "matmul")
    assert found.epilogue == ("bias", "residual") and found.lead == (3, 2)


def test_residual_before_a_reshape():
    def body(emit, x, r):
        y = emit(op.add(emit(op.matmul(x, W)), r))
        return emit(op.nn.relu(emit(op.reshape(y, (6, 4)))))

    after, _ = fused(body, {"x": (2, 3, 6), "r": (2, 3, 4)})
    assert contracts(after, "matmul")[0].epilogue == ("residual", "relu")


def test_a_reshape_into_heads_ends_the_epilogue():
    after, _ = fused(lambda e, x: e(op.nn.relu(e(op.reshape(e(op.matmul(x, W)), (2, 3, 2, 2))))))
    assert contracts(after, "matmul")[0].epilogue == () and calls(after)["relu"] == 1


def test_transposed_weight():
    weight = constant(weights(4, 6))
    after, _ = fused(lambda e, x: e(op.matmul(x, e(op.permute_dims(weight)))))
    assert calls(after) == {"matmul": 1}


def test_a_permutation_that_changes_nothing_is_no_transpose():
    square = constant(weights(6, 6))
    after, _ = fused(lambda e, x: e(op.matmul(x, e(op.permute_dims(square, [0, 1])))))
    assert contracts(after, "matmul")


def test_a_result_is_not_swallowed():
    def body(emit, x):
        y = emit(op.matmul(x, W))
        return emit(op.nn.relu(y)), y

    after, _ = fused(body)
    assert contracts(after, "matmul")[0].epilogue == () and calls(after) == {"matmul": 1, "relu": 1}


def test_two_users_end_the_epilogue():
    def body(emit, x):
        y = emit(op.add(emit(op.matmul(x, W)), B))
        return emit(op.multiply(emit(op.nn.relu(y)), emit(op.tanh(y))))

    after, _ = fused(body)
    assert contracts(after, "matmul")[0].epilogue == ("bias",)


@pytest.mark.parametrize("combine", [op.add, op.multiply])
def test_a_value_with_itself(combine):
    def body(emit, x):
        y = emit(op.matmul(x, W))
        return emit(combine(y, y))

    after, _ = fused(body)
    assert contracts(after, "matmul")[0].epilogue == ()


def test_one_product_is_the_residual_of_another():
    def body(emit, x):
        return emit(op.add(emit(op.matmul(x, W)), emit(op.matmul(x, constant(weights(6, 4, seed=3))))))

    after, _ = fused(body, fusions=2)
    assert calls(after) == {"matmul": 2}
    assert sorted(found.epilogue for found in contracts(after, "matmul")) == [(), ("residual",)]


def cross(emit, x, r):
    """A layer of a cross network: ``r * (x W + b) + r``."""
    product = emit(op.add(emit(op.matmul(x, W)), B))
    return emit(op.add(emit(op.multiply(r, product)), r))


def test_a_gate_joins_where_the_target_has_kernels_for_it():
    before = module({"x": (2, 3, 6), "r": (2, 3, 4)}, cross)
    for claims, steps in ((lambda op: True, ("bias", "gate", "residual")), (lambda op: False, ("bias",))):
        after, _, _ = fuse(before, FuseMatmul(claims))
        same_numbers(before, after)
        assert contracts(after, "matmul")[0].epilogue == steps


@pytest.mark.parametrize("gate", [constant(weights(2, 3, 4)), constant(weights(4)), None])
def test_constants_and_squares_are_no_gates(gate):
    def body(emit, x):
        product = emit(op.matmul(x, W))
        return emit(op.multiply(product, product if gate is None else gate))

    after, _, _ = fuse(module(X, body), FuseMatmul(lambda op: True))
    assert contracts(after, "matmul")[0].epilogue == ()


def test_a_broadcast_operand_is_no_residual():
    after, _ = fused(lambda e, x, r: e(op.add(e(op.matmul(x, W)), r)), {"x": (2, 3, 6), "r": (1, 3, 4)})
    assert contracts(after, "matmul")[0].epilogue == ()


def test_a_residual_that_is_larger_is_none():
    after, _ = fused(lambda e, x, r: e(op.add(e(op.matmul(x, W)), r)), {"x": (1, 3, 6), "r": (5, 3, 4)})
    assert contracts(after, "matmul")[0].epilogue == ()


def test_shared_weight_in_two_products():
    def body(emit, x, y):
        return emit(op.matmul(x, W)), emit(op.nn.relu(emit(op.matmul(y, W))))

    after, _ = fused(body, {"x": (3, 6), "y": (5, 6)}, fusions=2)
    assert calls(after) == {"matmul": 2}


def test_variable_and_batched_weights_are_no_near_miss():
    for inputs, weight in (
        ({"x": (3, 6), "w": (6, 4)}, None),
        ({"x": (2, 3, 6)}, constant(weights(2, 6, 4))),
    ):
        _, report = fused(
            lambda e, x, w=None, weight=weight: e(op.matmul(x, w if weight is None else weight)), inputs, 0
        )
        assert not report.misses


def test_reasons():
    vector, report = fused(lambda e, x: e(op.matmul(x, W)), {"x": (6,)}, 0)
    assert [miss["reason"] for miss in report.misses] == ["the left operand is a vector"]
    before = module(
        {"x": (3, 6)}, lambda e, x: e(op.matmul(x, constant(weights(6, 4), "float16"))), "float16"
    )
    _, _, report = fuse(before, FuseMatmul())
    assert "expected float32" in report.misses[0]["reason"]


def test_a_column_of_one():
    def body(emit, x):
        return emit(op.add(emit(op.matmul(x, constant(weights(6, 1)))), constant(2.0)))

    after, _ = fused(body)
    assert contracts(after, "matmul")[0].epilogue == ("bias",)


def test_constants_are_operands_in_order():
    after, _ = fused(lambda e, x: e(op.add(e(op.matmul(x, W)), B)))
    (call,) = [b.value for b in bindings(after)]
    shapes = [tuple(int(e) for e in field.ty.shape) for field in call.args[1].fields]
    assert shapes == [(2, 3, 6), (6, 4), (4,)]
    np.testing.assert_array_equal(call.args[1].fields[1].value.numpy(), weights(6, 4))


class TestFuseMatmul(Rewrite):
    rule = FuseMatmul()
    inputs = {"x": (2, 3, 4), "y": (2, 3, 5)}

    def before(self, x, y):
        product = op.matmul(x, constant(weights(4, 5)))
        return op.add(op.nn.relu(op.add(product, constant(weights(5)))), y)

    def expected(self, x, y):
        fused = Matmul((2, 3), 5, 4, ("bias", "relu", "residual"))
        return kernel(fused, x, constant(weights(4, 5)), constant(weights(5)), y)
