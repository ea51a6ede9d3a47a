"""Operators that return their operand are dropped, and nothing that only looks like one."""

import numpy as np
import pytest

from hetero_tvm.relax_passes.canonical.identities import DropIdentities
from tests.relax_passes.canonical.simplified import X, simplified
from tests.relax_passes.graphs import (
    calls,
    constant,
    fuse,
    module,
    names_of,
    op,
    same_numbers,
)
from tests.relax_passes.rewrite import Rewrite


@pytest.mark.parametrize(
    "identity",
    [
        lambda x: op.reshape(x, (2, 3, 4)),
        lambda x: op.astype(x, "float32"),
        lambda x: op.broadcast_to(x, (2, 3, 4)),
        lambda x: op.permute_dims(x, [0, 1, 2]),
        lambda x: op.concat([x], 1),
        lambda x: op.strided_slice(x, [1], [0], [3], [1]),
        lambda x: op.add(x, constant(0.0)),
        lambda x: op.add(constant(np.zeros(4)), x),
        lambda x: op.subtract(x, constant(0.0)),
        lambda x: op.multiply(constant(1.0), x),
        lambda x: op.divide(x, constant(np.ones((1, 4)))),
        lambda x: op.power(x, constant(1.0)),
        lambda x: op.where(constant([True], "bool"), x, constant(2.0)),
        lambda x: op.where(constant([False], "bool"), constant(2.0), x),
    ],
)
def test_identities_are_dropped(identity):
    assert simplified(lambda e, x: e(op.tanh(e(identity(e(op.exp(x)))))), DropIdentities()) == {
        "exp": 1,
        "tanh": 1,
    }
    assert simplified(lambda e, x: e(op.tanh(e(identity(x)))), DropIdentities()) == {"tanh": 1}


def test_an_identity_as_result_is_an_alias():
    before = module(X, lambda e, x: (e(op.multiply(e(op.tanh(x)), constant(1.0))), e(op.exp(x))))
    after, names, _ = fuse(before, DropIdentities())
    assert dict(calls(after)) == {"exp": 1, "tanh": 1} and names_of(before) <= set().union(*names.values())
    same_numbers(before, after)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: op.multiply(x, constant(np.ones((5, 1, 1, 1)))),  # broadcasts
        lambda x: op.multiply(x, constant(0.0)),
        lambda x: op.subtract(constant(0.0), x),
        lambda x: op.divide(constant(1.0), x),
        lambda x: op.add(x, constant(np.array([0.0, 0.0, 0.0, 1.0]))),
        lambda x: op.permute_dims(x, [0, 2, 1]),
        lambda x: op.strided_slice(x, [1], [0], [2], [1]),
        lambda x: op.astype(x, "int32"),
        lambda x: op.where(constant([True, False, True, True], "bool"), x, constant(2.0)),
    ],
)
def test_what_only_looks_like_an_identity(other):
    before = module(X, lambda e, x: e(other(x)))
    after, _, _ = fuse(before, DropIdentities())
    assert calls(after) == calls(before)


class TestDropIdentities(Rewrite):
    rule = DropIdentities()

    def before(self, x):
        return op.tanh(op.multiply(op.add(op.reshape(x, (2, 3, 4)), constant(0.0)), constant(1.0)))

    def expected(self, x):
        return op.tanh(x)
