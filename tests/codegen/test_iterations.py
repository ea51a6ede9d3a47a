"""Index expressions at all iterations at once, against Python's integers at each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_tvm.codegen.iterations import (
    Points,
    Unprovable,
    element_count,
    evaluate,
    flat_elements,
    try_evaluate,
)
from hetero_tvm.host.tvm import tirx

ROW, COLUMN = tirx.Var("row", "int32"), tirx.Var("column", "int32")
VALUES = np.arange(-6, 7)


def points():
    """Every pair of values."""
    i, j = (grid.reshape(-1, 1) for grid in np.meshgrid(VALUES, VALUES, indexing="ij"))
    time = np.arange(len(i))
    return Points({ROW: i, COLUMN: j}, time, np.full(len(i), -1), time)


BINARY = {
    "add": (lambda a, b: a + b, lambda a, b: a + b),
    "subtract": (lambda a, b: a - b, lambda a, b: a - b),
    "multiply": (lambda a, b: a * b, lambda a, b: a * b),
    "min": (tirx.min, min),
    "max": (tirx.max, max),
    "and": (tirx.bitwise_and, lambda a, b: a & b),
}
"""Name -> as an expression, of Python integers."""
BY_CONSTANT = {
    "floordiv": (tirx.floordiv, lambda a, b: a // b),
    "floormod": (tirx.floormod, lambda a, b: a % b),
    "truncdiv": (tirx.truncdiv, lambda a, b: int(a / b)),
    "truncmod": (tirx.truncmod, lambda a, b: a - int(a / b) * b),
    "shift_right": (tirx.shift_right, lambda a, b: a >> b),
}


@st.composite
def expressions(draw, depth=3):
    """An index expression, and a Python function of (row, column) that computes the same."""
    kinds = ["variable", "constant", *((*BINARY, *BY_CONSTANT, "choice") if depth else ())]
    kind = draw(st.sampled_from(kinds))
    if kind == "variable":
        return (ROW, lambda i, j: i) if draw(st.booleans()) else (COLUMN, lambda i, j: j)
    if kind == "constant":
        number = draw(st.integers(-5, 5))
        return tirx.const(number, "int32"), lambda i, j: number
    (a, of_a), (b, of_b) = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    if kind == "choice":
        either = draw(st.sampled_from((tirx.Select, tirx.if_then_else)))
        return either(a < b, a, b + 1), lambda i, j: of_a(i, j) if of_a(i, j) < of_b(i, j) else of_b(i, j) + 1
    if kind in BINARY:
        build, compute = BINARY[kind]
        return build(a, b), lambda i, j: compute(of_a(i, j), of_b(i, j))
    build, compute = BY_CONSTANT[kind]
    number = draw(st.integers(1, 5))
    return build(a, tirx.const(number, "int32")), lambda i, j: compute(of_a(i, j), number)


@given(expressions())
def test_values_are_those_of_every_iteration(pair):
    expression, compute = pair
    every = points()
    found = np.broadcast_to(evaluate(expression, every), (len(every), 1))[:, 0]
    assert list(found) == [compute(int(i), int(j)) for i in VALUES for j in VALUES]


def test_vectors_have_lanes():
    found = evaluate(tirx.Ramp(ROW * 2, tirx.const(3, "int32"), 4), points())
    np.testing.assert_array_equal(found, points().env[ROW] * 2 + [0, 3, 6, 9])


def test_elements_of_a_row_major_buffer():
    buffer = tirx.decl_buffer((5, 7), "float32")
    found = flat_elements(buffer, [ROW, COLUMN], points())
    np.testing.assert_array_equal(found[:, 0], (points().env[ROW] * 7 + points().env[COLUMN])[:, 0])
    assert element_count(buffer) == 35


def test_what_depends_on_data_has_no_value():
    unknown = tirx.Var("n", "int32")
    assert try_evaluate(ROW + unknown, points()) is None
    with pytest.raises(Unprovable, match="not on loops alone"):
        evaluate(unknown, points())
    with pytest.raises(Unprovable, match="symbolic"):
        element_count(tirx.decl_buffer((unknown,), "float32"))
    with pytest.raises(Unprovable, match="symbolic"):
        flat_elements(tirx.decl_buffer((4, unknown), "float32"), [ROW, COLUMN], points())


def test_later_iterations_outside_of_unordered_loops_are_later_in_every_way():
    some = points().take(np.array([1, 3])).at(10)
    np.testing.assert_array_equal(some.time, [11, 13])
    np.testing.assert_array_equal(some.epoch, [11, 13])
    assert len(some) == 2 and some.env[ROW].shape == (2, 1)
