"""GELU in its spellings, and what only looks like it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.elementwise import Elementwise
from hetero_tvm.relax_passes.fusions.gelu import FuseGelu
from tests.relax_passes.graphs import (
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

HALF, ONE, TWO, ROOT = constant(0.5), constant(1.0), constant(2.0), constant(math.sqrt(0.5))
SQRT2, TANH_SCALE, CUBIC = constant(math.sqrt(2)), constant(math.sqrt(2 / math.pi)), constant(0.044715)
X = {"x": (3, 5)}


def functions(mod):
    return [found.function for found in contracts(mod, "elementwise")]


def exact(emit, x, *, by_division=False, one_first=False, order="outer"):
    inner = emit(op.divide(x, SQRT2)) if by_division else emit(op.multiply(ROOT, x))
    curve = emit(op.erf(inner))
    curve = emit(op.add(ONE, curve)) if one_first else emit(op.add(curve, ONE))
    if order == "outer":  # 0.5 * (x * (1 + erf))
        return emit(op.multiply(HALF, emit(op.multiply(x, curve))))
    if order == "half_x":  # (x * 0.5) * (1 + erf)
        return emit(op.multiply(emit(op.multiply(x, HALF)), curve))
    if order == "half_curve":  # x * (0.5 * (1 + erf))
        return emit(op.multiply(x, emit(op.multiply(curve, HALF))))
    if order == "quotient_x":  # (x / 2) * (1 + erf)
        return emit(op.multiply(curve, emit(op.divide(x, TWO))))
    quarter = emit(op.multiply(curve, constant(0.25)))  # two factors that make one half
    return emit(op.multiply(emit(op.multiply(quarter, x)), TWO))


ORDERS = ("outer", "half_x", "half_curve", "quotient_x", "quarter")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("by_division", [False, True])
@pytest.mark.parametrize("one_first", [False, True])
def test_exact_spellings(order, by_division, one_first):
    before = module(X, lambda e, x: exact(e, x, by_division=by_division, one_first=one_first, order=order))
    after, names, report = fuse(before, FuseGelu())
    assert functions(after) == ["gelu_erf"]
    assert report.fusions == {"gelu": 1} and not report.misses
    (sources,) = names.values()
    assert set(sources) == names_of(before)
    same_numbers(before, after)


def approximate(emit, x, cube="product", order="outer", coefficient=CUBIC):
    if cube == "product":
        third = emit(op.multiply(emit(op.multiply(x, x)), x))
    elif cube == "right":
        third = emit(op.multiply(x, emit(op.multiply(x, x))))
    else:
        third = emit(op.power(x, constant(3.0)))
    cubic = emit(op.multiply(coefficient, third))
    total = emit(op.add(cubic, x)) if order == "outer" else emit(op.add(x, cubic))
    curve = emit(op.add(emit(op.tanh(emit(op.multiply(total, TANH_SCALE)))), ONE))
    if order == "outer":
        return emit(op.multiply(HALF, emit(op.multiply(x, curve))))
    return emit(op.multiply(emit(op.multiply(HALF, x)), curve))


@pytest.mark.parametrize("cube", ["product", "right", "power"])
@pytest.mark.parametrize("order", ["outer", "half_x"])
def test_tanh_spellings(cube, order):
    before = module(X, lambda e, x: approximate(e, x, cube, order))
    after, _, report = fuse(before, FuseGelu())
    assert functions(after) == ["gelu_tanh"] and not report.misses
    same_numbers(before, after)


def test_tanh_of_the_factored_cubic():
    """x * sqrt(2 / pi) * (1 + 0.044715 x x), as GPT-NeoX and Bloom write it."""

    def body(emit, x):
        inner = emit(op.multiply(emit(op.multiply(CUBIC, x)), x))
        scaled = emit(op.multiply(TANH_SCALE, x))
        curve = emit(op.tanh(emit(op.multiply(scaled, emit(op.add(ONE, inner))))))
        return emit(op.multiply(emit(op.multiply(x, HALF)), emit(op.add(curve, ONE))))

    before = module(X, body)
    after, names, report = fuse(before, FuseGelu())
    assert functions(after) == ["gelu_tanh"] and not report.misses
    assert set().union(*names.values()) == names_of(before)
    same_numbers(before, after)


def test_half_as_a_division_at_the_end():
    def body(emit, x):
        curve = emit(op.add(emit(op.erf(emit(op.divide(x, SQRT2)))), ONE))
        return emit(op.divide(emit(op.multiply(curve, x)), TWO))

    before = module(X, body)
    after, _, report = fuse(before, FuseGelu())
    assert functions(after) == ["gelu_erf"] and not report.misses
    same_numbers(before, after)


def test_x_that_is_itself_scaled():
    before = module(X, lambda e, x: exact(e, e(op.multiply(x, constant(3.0)))))
    after, _, report = fuse(before, FuseGelu())
    assert calls(after) == {"elementwise": 1, "multiply": 1} and not report.misses
    same_numbers(before, after)


@pytest.mark.parametrize(("operator", "function"), [(op.nn.gelu, "gelu_erf"), (op.nn.gelu_tanh, "gelu_tanh")])
def test_operators(operator, function):
    before = module(X, lambda e, x: e(operator(x)))
    after, _, report = fuse(before, FuseGelu())
    assert functions(after) == [function] and report.fusions == {"gelu": 1}
    same_numbers(before, after)


@settings(max_examples=25)
@given(st.data())
def test_random_spellings(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 6), max_size=4)))
    if data.draw(st.booleans()):
        form = (st.booleans(), st.booleans(), st.sampled_from(ORDERS))
        by_division, one_first, order = (data.draw(s) for s in form)
        before = module(
            {"x": shape}, lambda e, x: exact(e, x, by_division=by_division, one_first=one_first, order=order)
        )
    else:
        cube = data.draw(st.sampled_from(["product", "right", "power"]))
        before = module({"x": shape}, lambda e, x: approximate(e, x, cube))
    after, _, report = fuse(before)
    assert report.fusions == {"gelu": 1} and not report.misses
    same_numbers(before, after)


def test_a_wider_result_is_no_gelu():
    """x [3, 1] is spread over the columns by something else: one kernel per value would not do."""

    def body(emit, x, y):
        curve = emit(op.add(emit(op.erf(emit(op.multiply(x, ROOT)))), ONE))
        return emit(op.multiply(emit(op.multiply(curve, emit(op.multiply(x, HALF)))), y))

    before = module({"x": (3, 1), "y": (3, 5)}, body)
    after, _, report = fuse(before, FuseGelu())
    assert report.fusions == {"gelu": 1} and calls(after) == {"elementwise": 1, "multiply": 1}
    same_numbers(before, after)


def miss(body, inputs=X):
    before = module(inputs, body)
    after, _, report = fuse(before, FuseGelu())
    assert not report.fusions and calls(after) == calls(before)
    same_numbers(before, after)
    (found,) = report.misses
    assert found["rule"] == "gelu"
    return found["reason"]


def test_wrong_scale():
    def body(emit, x):
        curve = emit(op.add(emit(op.erf(emit(op.multiply(x, constant(0.7))))), ONE))
        return emit(op.multiply(emit(op.multiply(x, curve)), HALF))

    assert "expected x / sqrt(2)" in miss(body)


def test_another_factor_than_x():
    def body(emit, x, y):
        curve = emit(op.add(emit(op.erf(emit(op.multiply(x, ROOT)))), ONE))
        return emit(op.multiply(emit(op.multiply(y, curve)), HALF))

    assert "another tensor than x" in miss(body, {"x": (3, 5), "y": (3, 5)})


def test_no_half():
    def body(emit, x):
        curve = emit(op.add(emit(op.erf(emit(op.multiply(x, ROOT)))), ONE))
        return emit(op.multiply(x, curve))

    assert "not multiplied by x / 2 alone" in miss(body)


def test_curve_used_twice():
    def body(emit, x):
        curve = emit(op.add(emit(op.erf(emit(op.multiply(x, ROOT)))), ONE))
        return emit(op.multiply(emit(op.multiply(x, curve)), HALF)), curve

    assert "alone" in miss(body)


def test_wrong_cubic():
    reason = miss(lambda e, x: approximate(e, x, coefficient=constant(0.05)))
    assert "expected sqrt(2 / pi) * (x + 0.044715 x**3)" in reason


def test_curve_squared():
    def body(emit, x):
        curve = emit(op.add(emit(op.erf(emit(op.multiply(x, ROOT)))), ONE))
        return emit(op.multiply(emit(op.multiply(emit(op.multiply(curve, curve)), x)), HALF))

    assert "alone" in miss(body)


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_plain_functions_are_no_near_miss(name):
    before = module(X, lambda e, x: e(op.add(e(getattr(op, name)(x)), x)))
    after, _, report = fuse(before, FuseGelu())
    assert calls(after) == calls(before) and not report.misses


def test_the_result_may_be_used_twice_and_x_too():
    def body(emit, x):
        h = emit(op.add(x, constant(0.1)))
        g = exact(emit, h)
        return emit(op.add(g, h)), g

    before = module(X, body)
    after, _, report = fuse(before, FuseGelu())
    assert calls(after) == {"elementwise": 1, "add": 2} and not report.misses
    same_numbers(before, after)


def test_after_a_matmul_it_is_part_of_the_epilogue():
    def body(emit, x):
        y = emit(op.add(emit(op.matmul(x, constant(weights(5, 7)))), constant(weights(7))))
        return exact(emit, y)

    before = module(X, body)
    after, _, report = fuse(before)
    assert calls(after) == {"matmul": 1} and report.fusions == {"gelu": 1, "matmul_epilogue": 1}
    same_numbers(before, after)


class TestFuseGelu(Rewrite):
    rule = FuseGelu()

    def before(self, x):
        inner = op.erf(op.divide(x, constant(np.sqrt(2.0))))
        return op.multiply(op.multiply(x, constant(0.5)), op.add(inner, constant(1.0)))

    def expected(self, x):
        return kernel(Elementwise((2, 3, 4), "gelu_erf"), x)
