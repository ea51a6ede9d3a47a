"""SiLU, quick GELU and hard swish in their spellings, and products that only look like them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.elementwise import Elementwise
from hetero_tvm.relax_passes.fusions.silu import FuseHardSwish, FuseQuickGelu, FuseSilu
from hetero_tvm.relax_passes.pipeline import optimize
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

ONE, SLOPE = constant(1.0), constant(1.702)
X = {"x": (3, 5)}


def sigmoid(emit, x, written_out=False):
    if not written_out:
        return emit(op.sigmoid(x))
    return emit(op.divide(ONE, emit(op.add(emit(op.exp(emit(op.negative(x)))), ONE))))


def gated(emit, x, *, quick=False, gate_first=False, written_out=False):
    argument = emit(op.multiply(SLOPE, x)) if quick else x
    gate = sigmoid(emit, argument, written_out)
    return emit(op.multiply(gate, x) if gate_first else op.multiply(x, gate))


def functions(mod):
    return [found.function for found in contracts(mod, "elementwise")]


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("written_out", [False, True])
def test_spellings(quick, gate_first, written_out):
    before = module(X, lambda e, x: gated(e, x, quick=quick, gate_first=gate_first, written_out=written_out))
    after, names, report = fuse(before, FuseSilu(), FuseQuickGelu())
    name = "quick_gelu" if quick else "silu"
    assert functions(after) == [name] and report.fusions == {name: 1} and not report.misses
    assert set().union(*names.values()) == names_of(before)
    same_numbers(before, after)


def test_x_over_one_plus_exp():
    before = module(X, lambda e, x: e(op.divide(x, e(op.add(ONE, e(op.exp(e(op.negative(x)))))))))
    after, _, report = fuse(before, FuseSilu(), FuseQuickGelu())
    assert functions(after) == ["silu"] and report.fusions == {"silu": 1}
    same_numbers(before, after)


def test_operator():
    before = module(X, lambda e, x: e(op.nn.silu(x)))
    after, _, report = fuse(before, FuseSilu(), FuseQuickGelu())
    assert functions(after) == ["silu"] and report.fusions == {"silu": 1}


@pytest.mark.parametrize(
    "body",
    [
        lambda e, x, y: e(op.multiply(y, e(op.sigmoid(x)))),  # a gated linear unit
        lambda e, x, y: e(op.multiply(x, e(op.sigmoid(e(op.multiply(x, constant(1.6))))))),
        lambda e, x, y: e(op.multiply(x, e(op.sigmoid(e(op.add(x, ONE)))))),
        lambda e, x, y: e(op.add(x, e(op.sigmoid(x)))),
        lambda e, x, y: e(op.divide(x, e(op.add(ONE, e(op.exp(x)))))),
        lambda e, x, y: e(op.divide(e(op.sigmoid(x)), x)),
    ],
)
def test_what_is_neither(body):
    before = module({"x": (3, 5), "y": (3, 5)}, body)
    after, _, report = fuse(before, FuseSilu(), FuseQuickGelu())
    assert calls(after) == calls(before) and not report.fusions
    same_numbers(before, after)


def test_in_the_epilogue_of_a_product():
    def body(emit, x):
        return gated(emit, emit(op.matmul(x, constant(weights(5, 7)))), quick=True)

    before = module(X, body)
    after, _, report = fuse(before)
    assert contracts(after, "matmul")[0].epilogue == ("quick_gelu",)
    assert report.fusions == {"quick_gelu": 1, "matmul_epilogue": 1}
    same_numbers(before, after)


def test_an_activation_alone_is_fused_with_its_neighbours():
    def body(emit, x, y):
        return emit(op.add(gated(emit, emit(op.add(x, y)), quick=True), y))

    lowered, _, report = optimize(module({"x": (3, 5), "y": (3, 5)}, body), {})
    assert report.fusions == {"quick_gelu": 1}
    assert len(bindings(lowered)) == 1


@settings(max_examples=20)
@given(st.lists(st.integers(1, 6), max_size=4), st.booleans(), st.booleans(), st.booleans())
def test_random_shapes(shape, quick, gate_first, written_out):
    before = module(
        {"x": tuple(shape)},
        lambda e, x: gated(e, x, quick=quick, gate_first=gate_first, written_out=written_out),
    )
    after, _, report = fuse(before)
    assert report.fusions == {"quick_gelu" if quick else "silu": 1}
    same_numbers(before, after)


THREE, SIX, SIXTH, HALF, ZERO = (constant(value) for value in (3.0, 6.0, 1 / 6, 0.5, 0.0))
HARD_SWISHES = {
    "operator": lambda e, x: e(op.multiply(x, e(op.divide(e(op.clip(e(op.add(x, THREE)), 0, 6)), SIX)))),
    "sixth last": lambda e, x: e(op.divide(e(op.multiply(x, e(op.clip(e(op.add(x, THREE)), 0, 6)))), SIX)),
    "relu6": lambda e, x: e(
        op.multiply(
            e(op.multiply(e(op.minimum(e(op.maximum(e(op.add(THREE, x)), ZERO)), SIX)), x)), constant(1 / 6)
        )
    ),
    "hard sigmoid": lambda e, x: e(
        op.multiply(e(op.clip(e(op.add(e(op.multiply(SIXTH, x)), HALF)), 0, 1)), x)
    ),
}


@pytest.mark.parametrize("body", HARD_SWISHES.values(), ids=HARD_SWISHES)
def test_hard_swish(body):
    before = module(X, body)
    after, names, report = fuse(before, FuseHardSwish())
    assert functions(after) == ["hard_swish"] and report.fusions == {"hard_swish": 1} and not report.misses
    assert set().union(*names.values()) == names_of(before)
    same_numbers(before, after)


@pytest.mark.parametrize(
    "body",
    [
        lambda e, x, y: e(op.multiply(y, e(op.divide(e(op.clip(e(op.add(x, THREE)), 0, 6)), SIX)))),  # a gate
        lambda e, x, y: e(op.multiply(x, e(op.divide(e(op.clip(e(op.add(x, ONE)), 0, 6)), SIX)))),
        lambda e, x, y: e(op.multiply(x, e(op.divide(e(op.clip(e(op.add(x, THREE)), 0, 5)), SIX)))),
        lambda e, x, y: e(op.multiply(x, e(op.divide(e(op.clip(e(op.add(x, THREE)), 1, 6)), SIX)))),
        lambda e, x, y: e(op.multiply(x, e(op.clip(e(op.add(x, THREE)), 0, 6)))),
    ],
)
def test_what_is_no_hard_swish(body):
    before = module({"x": (3, 5), "y": (3, 5)}, body)
    after, _, report = fuse(before, FuseHardSwish())
    assert calls(after) == calls(before) and not report.fusions
    same_numbers(before, after)


def test_a_convolution_ends_in_a_hard_swish():
    def body(emit, x):
        return HARD_SWISHES["operator"](emit, emit(op.nn.conv2d(x, constant(weights(8, 4, 3, 3)), padding=1)))

    before = module({"x": (1, 4, 6, 6)}, body)
    after, _, report = fuse(before)
    assert contracts(after, "conv2d")[0].epilogue == ("hard_swish",)
    same_numbers(before, after)


class TestFuseSilu(Rewrite):
    rule = FuseSilu()

    def before(self, x):
        return op.multiply(x, op.sigmoid(x))

    def expected(self, x):
        return kernel(Elementwise((2, 3, 4), "silu"), x)


class TestFuseQuickGelu(Rewrite):
    rule = FuseQuickGelu()

    def before(self, x):
        return op.multiply(x, op.sigmoid(op.multiply(x, constant(1.702))))

    def expected(self, x):
        return kernel(Elementwise((2, 3, 4), "quick_gelu"), x)


class TestFuseHardSwish(Rewrite):
    rule = FuseHardSwish()

    def before(self, x):
        return op.multiply(x, op.divide(op.clip(op.add(x, THREE), 0, 6), SIX))

    def expected(self, x):
        return kernel(Elementwise((2, 3, 4), "hard_swish"), x)
