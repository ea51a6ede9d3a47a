"""Scalar arithmetic, however it is spelled, read as the polynomial that it computes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.relax_passes.rewriting.graph import Graph
from hetero_tvm.relax_passes.rewriting.polynomial import is_polynomial, polynomial, scalings
from tests.relax_passes.graphs import bindings, constant, evaluate, module, op

X = {"x": (5,)}
POINTS = np.array([-2.0, -0.5, 0.0, 0.25, 1.5])
NUMBERS = st.sampled_from([-2.0, -0.5, 1.0, 0.25, 3.0])
STEPS = st.sampled_from(["add", "subtract", "multiply", "divide", "times x", "square", "negative", "cube"])


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(STEPS, NUMBERS, st.booleans()), min_size=1, max_size=5))
def test_any_arithmetic(steps):
    def body(emit, x):
        y = x
        for name, number, left in steps:
            if name in ("add", "subtract", "multiply"):
                args = (constant(number), y) if left else (y, constant(number))
                y = emit(getattr(op, name)(*args))
            elif name == "divide":
                y = emit(op.divide(y, constant(number)))
            elif name == "times x":
                y = emit(op.multiply(x, y) if left else op.multiply(y, x))
            elif name == "cube":
                y = emit(op.power(y, constant(3.0)))
            else:
                y = emit(getattr(op, name)(y))
        return y

    mod = module(X, body)
    found = polynomial(Graph(mod), bindings(mod)[-1].var, mod["main"].params[0])
    if found is None:  # of too high a degree to be looked at
        assert sum(name in ("times x", "square", "cube") for name, *_ in steps) > 1
        return
    (expected,) = evaluate(mod, [POINTS])
    values = sum(coefficient * POINTS**power for power, coefficient in found.items())
    np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-9 * max(1.0, np.abs(expected).max()))


def test_another_function_or_tensor_is_none():
    mod = module({**X, "y": (5,)}, lambda emit, x, y: (emit(op.tanh(x)), emit(op.add(x, y))))
    graph, (x, _) = Graph(mod), mod["main"].params
    assert [polynomial(graph, binding.var, x) for binding in bindings(mod)[:2]] == [None, None]


def test_coefficients_are_compared_relative_to_their_size():
    assert is_polynomial({1: 0.70710678, 0: 0.0}, {1: 0.7071068})
    assert not is_polynomial({1: 0.7072}, {1: 0.7071068})
    assert not is_polynomial({1: 1.0, 2: 1e-9}, {1: 1.0}) and not is_polynomial(None, {1: 1.0})


def test_constants_are_stripped_one_by_one():
    def body(emit, x):
        return emit(op.divide(emit(op.multiply(constant(6.0), x)), constant(4.0)))

    mod = module(X, body)
    first, second = bindings(mod)
    found = list(scalings(Graph(mod), second.var))
    assert [factor for _, factor in found] == [1.0, 0.25, 1.5]
    wanted = (second.var, first.var, mod["main"].params[0])
    assert all(expr.same_as(var) for (expr, _), var in zip(found, wanted, strict=True))
