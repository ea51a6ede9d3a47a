"""Bindings that compute the same are one."""

import pytest

from hetero_tvm.relax_passes.canonical import duplicates
from hetero_tvm.relax_passes.canonical.duplicates import MergeDuplicates
from tests.relax_passes.canonical.simplified import X, simplified
from tests.relax_passes.graphs import (
    bindings,
    calls,
    constant,
    fuse,
    module,
    op,
    same_numbers,
)
from tests.relax_passes.rewrite import Rewrite


def test_duplicates_are_merged():
    def body(emit, x):
        one = emit(op.multiply(x, constant(2.0)))
        two = emit(op.multiply(x, constant(2.0)))
        a = emit(op.reshape(one, (6, 4)))
        b = emit(op.reshape(two, (6, 4)))
        return emit(op.add(emit(op.tanh(a)), emit(op.exp(b))))

    assert simplified(body, MergeDuplicates()) == {"multiply": 1, "reshape": 1, "tanh": 1, "exp": 1, "add": 1}


def test_twins_are_looked_for_among_few(monkeypatch):
    """A sum of thousands of the same few tensors took time with the square of their number."""

    def body(emit, x):
        y = emit(op.tanh(x))
        for _ in range(30):
            y = emit(op.add(y, x))
        return y

    looked = []
    same = duplicates._same
    monkeypatch.setattr(duplicates, "_same", lambda a, b: looked.append(a) or same(a, b))
    assert simplified(body, MergeDuplicates()) == {"tanh": 1, "add": 30}
    assert len(looked) < 30 * 30


@pytest.mark.parametrize(
    "second",
    [
        lambda x: op.multiply(x, constant(2.5)),
        lambda x: op.multiply(x, constant([2.0])),
        lambda x: op.add(x, constant(2.0)),
        lambda x: op.multiply(constant(2.0), x),
    ],
)
def test_what_is_no_duplicate(second):
    def body(emit, x):
        return emit(op.subtract(emit(op.multiply(x, constant(2.0))), emit(second(x))))

    before = module(X, body)
    after, _, _ = fuse(before, MergeDuplicates())
    assert calls(after) == calls(before)


def test_the_last_axis_has_two_names():
    def body(emit, x):
        first = emit(op.mean(x, axis=[-1], keepdims=True))
        return emit(op.multiply(emit(op.add(x, first)), emit(op.mean(x, axis=[2], keepdims=True))))

    assert simplified(body, MergeDuplicates()) == {"mean": 1, "add": 1, "multiply": 1}


@pytest.mark.parametrize("other", [{"axis": [0], "keepdims": True}, {"axis": [1, 2], "keepdims": True}])
def test_other_axes_are_no_duplicate(other):
    def body(emit, x):
        first = emit(op.mean(x, axis=[-1], keepdims=True))
        return emit(op.multiply(emit(op.add(x, first)), emit(op.mean(x, **other))))

    assert simplified(body, MergeDuplicates())["mean"] == 2


def test_two_results_stay_two():
    before = module(X, lambda e, x: (e(op.add(x, constant(1.0))), e(op.add(x, constant(1.0)))))
    after, _, _ = fuse(before, MergeDuplicates())
    assert len(bindings(after)) == 2
    same_numbers(before, after)


class TestMergeDuplicates(Rewrite):
    rule = MergeDuplicates()

    def before(self, x):
        return op.subtract(op.exp(op.add(x, constant(1.0))), op.tanh(op.add(x, constant(1.0))))

    def expected(self, x):
        y = op.add(x, constant(1.0))
        return op.subtract(op.exp(y), op.tanh(y))
