"""Additions taken into the norm of their sum, and the sum as a second result."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.add_norm import AddNorm
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.relax_passes.fusions.add_norm import FuseAddNorm
from hetero_tvm.relax_passes.fusions.normalization import FuseLayerNorm, FuseRmsNorm
from tests.relax_passes.graphs import (
    calls,
    constant,
    contracts,
    fuse,
    module,
    names_of,
    op,
    relax,
    same_numbers,
    weights,
)
from tests.relax_passes.rewrite import Rewrite, kernel

X = {"x": (2, 3, 8), "r": (2, 3, 8)}
RULES = FuseLayerNorm(), FuseRmsNorm(), FuseAddNorm(lambda op: True)


def layer_norm(emit, x, n=8):
    return emit(op.nn.layer_norm(x, constant(weights(n)), constant(weights(n, seed=1)), axes=[-1]))


def rms_norm(emit, x, n=8):
    return emit(op.nn.rms_norm(x, constant(weights(n)), axes=[-1], epsilon=1e-5))


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("norm, name", [(layer_norm, "layer_norm"), (rms_norm, "rms_norm")])
def test_sum_and_norm(norm, name, kept):
    def body(emit, x, r):
        total = emit(op.add(x, r))
        y = norm(emit, total)
        return (emit(op.tanh(total)), y) if kept else y

    before = module(X, body)
    after, names, report = fuse(before, *RULES)
    assert calls(after) == ({"add_norm": 1, "tanh": 1} if kept else {"add_norm": 1})
    assert report.fusions == {name: 1} and not report.misses  # counted under its norm, once
    assert contracts(after, "add_norm")[0].kept is kept
    assert set().union(*names.values()) >= names_of(before)
    same_numbers(before, after)


def test_sum_that_is_a_result():
    before = module(X, lambda e, x, r: ((total := e(op.add(x, r))), layer_norm(e, total)))
    after, _, _ = fuse(before, *RULES)
    assert calls(after) == {"add_norm": 1}
    same_numbers(before, after)


def test_chain_of_residuals():
    """The sum of one block is the residual of the next, as between the layers of Gemma 2."""

    def body(emit, x, r):
        for _ in range(3):
            branch = emit(op.tanh(layer_norm(emit, x)))
            x = emit(op.add(x, layer_norm(emit, branch)))
        return emit(op.multiply(x, r))

    before = module(X, body)
    after, _, report = fuse(before, *RULES)
    assert report.fusions == {"layer_norm": 6}
    assert calls(after) == {"add_norm": 2, "normalize": 4, "tanh": 3, "add": 1, "multiply": 1}
    same_numbers(before, after)


@pytest.mark.parametrize("shape", [(1, 3, 8), (3, 8), (8,), (1, 1, 8)])
@pytest.mark.parametrize("first", [True, False])
def test_residual_that_repeats(shape, first):
    def body(emit, x):
        other = constant(weights(*shape))
        total = emit(op.add(other, x) if first else op.add(x, other))
        return layer_norm(emit, total), total

    before = module({"x": (2, 3, 8)}, body)
    after, _, _ = fuse(before, *RULES)
    assert calls(after)["add_norm"] == 1 and calls(after)["add"] == 0
    same_numbers(before, after)


@pytest.mark.parametrize("kept", [True, False])
def test_reshape_between(kept):
    def body(emit, x, r):
        total = emit(op.add(x, r))
        y = layer_norm(emit, emit(op.reshape(total, (6, 8))))
        return (y, total) if kept else y

    before = module(X, body)
    after, _, _ = fuse(before, *RULES)
    assert calls(after) == {"add_norm": 1, "reshape": 1}
    same_numbers(before, after)


def test_two_norms_of_one_sum():
    """The second norm reads the sum that the first has stored."""

    def body(emit, x, r):
        total = emit(op.add(x, r))
        return layer_norm(emit, total), rms_norm(emit, total)

    before = module(X, body)
    after, _, report = fuse(before, *RULES)
    assert calls(after) == {"add_norm": 1, "normalize": 1}
    assert report.fusions == {"layer_norm": 1, "rms_norm": 1}
    same_numbers(before, after)


@pytest.mark.parametrize(
    "inputs, body",
    [
        ({"x": (2, 3, 8), "r": (2, 1, 8)}, lambda e, x, r: layer_norm(e, e(op.add(x, r)))),
        ({"x": (2, 1, 8), "r": (1, 3, 8)}, lambda e, x, r: layer_norm(e, e(op.add(x, r)))),
        (X, lambda e, x, r: layer_norm(e, e(op.subtract(x, r)))),
        (X, lambda e, x, r: layer_norm(e, e(op.tanh(e(op.add(x, r)))))),
        ({"x": (2, 3, 8)}, lambda e, x: layer_norm(e, e(op.add(x, constant(1.0))))),
        # rows of another length than those that are added
        (X, lambda e, x, r: layer_norm(e, e(op.reshape(e(op.add(x, r)), (2, 24))), 24)),
    ],
    ids=["inner axis repeats", "both repeat", "subtract", "between", "scalar", "rows"],
)
def test_what_stays_apart(inputs, body):
    before = module(inputs, body)
    after, _, report = fuse(before, *RULES)
    assert calls(after)["add_norm"] == 0 and calls(after)["normalize"] == 1 and not report.misses
    same_numbers(before, after)


def test_a_target_without_the_kernel():
    before = module(X, lambda e, x, r: layer_norm(e, e(op.add(x, r))))
    after, _, _ = fuse(before, FuseLayerNorm(), FuseAddNorm(lambda op: False))
    assert calls(after) == {"add": 1, "normalize": 1}


@settings(max_examples=20)
@given(st.data())
def test_random_shapes(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    cut = data.draw(st.integers(0, len(shape) - 1))
    residual = (1,) * data.draw(st.integers(0, cut)) + shape[cut:]
    norm = data.draw(st.sampled_from([layer_norm, rms_norm]))
    used = data.draw(st.booleans())

    def body(emit, x, r):
        total = emit(op.add(x, r))
        y = norm(emit, total, shape[-1])
        return (y, emit(op.tanh(total))) if used else y

    before = module({"x": shape, "r": residual}, body)
    after, _, _ = fuse(before, *RULES)
    assert calls(after)["add_norm"] == 1
    same_numbers(before, after)


class TestFuseAddNorm(Rewrite):
    rule = FuseAddNorm(lambda op: True)
    inputs = {"x": (2, 3, 4), "y": (2, 3, 4)}

    def before(self, x, y):
        total = op.add(x, y)
        normalized = kernel(Normalization((2, 3), 4, 0.25, shifted=False), total, constant(weights(4)))
        return op.tanh(total), normalized

    def expected(self, x, y):
        both = kernel(AddNorm((2, 3), 4, (2, 3, 4), 0.25, shifted=False), x, y, constant(weights(4)))
        total, normalized = relax.TupleGetItem(both, 0), relax.TupleGetItem(both, 1)
        return op.tanh(total), normalized
