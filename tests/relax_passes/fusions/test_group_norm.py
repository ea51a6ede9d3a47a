"""Group and instance norms as exporters write them, and layer norms that stay layer norms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.group_norm import GroupNorm
from hetero_tvm.relax_passes.fusions.group_norm import FuseGroupNorm
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

X = {"x": (2, 6, 3, 4)}
EPS = constant(1e-3)


def normalized(emit, x, axes, variance=True):
    base = emit(op.subtract(x, emit(op.mean(x, axis=axes, keepdims=True))))
    if variance:
        spread = emit(op.variance(x, axis=axes, keepdims=True))
    else:
        spread = emit(op.mean(emit(op.multiply(base, base)), axis=axes, keepdims=True))
    return emit(op.divide(base, emit(op.sqrt(emit(op.add(spread, EPS))))))


def group_norm(emit, x, groups=2, *, affine=True, by_group=False, variance=True):
    shape = tuple(int(e) for e in x.ty.shape)
    y = normalized(emit, emit(op.reshape(x, (shape[0], groups, -1))), [2], variance)
    if by_group:
        y = emit(op.multiply(y, constant(weights(groups, 1, seed=4))))
        y = emit(op.add(y, constant(weights(groups, 1, seed=5))))
    y = emit(op.reshape(y, shape))
    if affine:
        channel = (shape[1],) + (1,) * (len(shape) - 2)
        y = emit(op.multiply(y, constant(weights(*channel))))
        y = emit(op.add(constant(weights(*channel, seed=1)), y))
    return y


def instance_norm(emit, x, affine=True):
    rank = len(x.ty.shape)
    y = normalized(emit, x, list(range(2, rank)))
    if affine:
        channel = (int(x.ty.shape[1]),) + (1,) * (rank - 2)
        y = emit(
            op.add(emit(op.multiply(y, constant(weights(*channel)))), constant(weights(*channel, seed=1)))
        )
    return y


def fused(body, inputs=X, also=None):
    before = module(inputs, body)
    after, names, report = fuse(before)
    assert report.fusions == {"group_norm": 1, **(also or {})} and not report.misses
    assert names_of(before) <= set().union(*names.values())
    assert dict(calls(after)) == {"group_norm": 1}
    same_numbers(before, after)
    return contracts(after, "group_norm")[0]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("by_group", [True, False])
@pytest.mark.parametrize("variance", [True, False])
def test_between_reshapes(affine, by_group, variance):
    found = fused(lambda e, x: group_norm(e, x, affine=affine, by_group=by_group, variance=variance))
    assert (found.groups, found.shape, found.activation) == (2, (2, 6, 3, 4), "")


@pytest.mark.parametrize("shape", [(2, 6), (1, 6, 5), (2, 6, 2, 1, 3)])
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_other_ranks(shape, groups):
    if len(shape) == 2 and groups == 6:
        return  # a row of one value
    assert fused(lambda e, x: group_norm(e, x, groups), {"x": shape}).groups == groups


@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 6, 3, 4)])
def test_instance_norm(shape):
    assert fused(lambda e, x: instance_norm(e, x), {"x": shape}).groups == 6


def test_instance_norm_without_constants():
    assert fused(lambda e, x: instance_norm(e, x, affine=False)).groups == 6


@pytest.mark.parametrize("flags", [True, False])
def test_operator(flags):
    def body(emit, x):
        vectors = constant(weights(6)), constant(weights(6, seed=1))
        return emit(op.nn.group_norm(x, *vectors, 3, 1, axes=[2, 3], epsilon=1e-3, center=flags, scale=flags))

    before = module(X, body)
    after, _, report = fuse(before)
    (found,) = contracts(after, "group_norm")
    assert report.fusions == {"group_norm": 1} and found.groups == 3
    x = np.random.default_rng(0).standard_normal((2, 6, 3, 4))
    if not flags:
        y = found.reference(x, np.ones(6), np.zeros(6))
        np.testing.assert_allclose(y.reshape(2, 3, -1).std(-1), 1, rtol=1e-2)


def test_silu_joins_in():
    body = lambda e, x: e(op.nn.silu(group_norm(e, x)))  # noqa: E731
    assert fused(body, also={"silu": 1}).activation == "silu"


@pytest.mark.parametrize(
    "body",
    [
        lambda e, x: normalized(e, e(op.reshape(x, (2, 2, 36))), [2]),  # not reshaped back
        lambda e, x: e(op.reshape(normalized(e, e(op.reshape(x, (2, 2, 36))), [2]), (2, 3, 6, 4))),
        lambda e, x: e(op.reshape(normalized(e, e(op.reshape(x, (4, 3, 12))), [2]), (2, 6, 3, 4))),
        lambda e, x: normalized(e, x, [3]),
        lambda e, x: normalized(e, x, [1, 2, 3]),
        lambda e, x: normalized(e, x, [1]),
    ],
)
def test_what_is_no_group_norm(body):
    before = module(X, body)
    after, _, report = fuse(before, FuseGroupNorm())
    assert calls(after) == calls(before) and not report.fusions and not report.misses


@pytest.mark.parametrize("weight", [None, (5,), (1, 5)])
def test_a_layer_norm_of_rank_three(weight):
    def body(emit, x):
        y = normalized(emit, x, [2])
        return y if weight is None else emit(op.multiply(y, constant(weights(*weight))))

    before = module({"x": (2, 6, 5)}, body)
    after, _, report = fuse(before)
    assert report.fusions == {"layer_norm": 1} and dict(calls(after)) == {"normalize": 1}
    same_numbers(before, after)


def test_constants_of_other_shapes_stay_outside():
    def body(emit, x):
        return emit(op.multiply(group_norm(emit, x), constant(weights(3, 4))))

    before = module(X, body)
    after, _, report = fuse(before)
    assert report.fusions == {"group_norm": 1} and calls(after)["multiply"] == 1
    same_numbers(before, after)


@settings(max_examples=20)
@given(st.data())
def test_random_groups(data):
    groups, per_group = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 4))
    shape = (
        data.draw(st.integers(1, 3)),
        groups * per_group,
        *data.draw(st.lists(st.integers(2, 4), min_size=1, max_size=2)),
    )
    form = {"affine": data.draw(st.booleans()), "by_group": data.draw(st.booleans())}
    fused(lambda e, x: group_norm(e, x, groups, **form), {"x": shape})


class TestFuseGroupNorm(Rewrite):
    rule = FuseGroupNorm()
    inputs = {"x": (2, 4, 3, 5)}

    def before(self, x):
        scale, shift = constant(weights(4)), constant(weights(4, seed=1))
        return op.nn.relu(op.nn.group_norm(x, scale, shift, 2, 1, [2, 3], 0.25))

    def expected(self, x):
        fused = GroupNorm((2, 4, 3, 5), 2, 0.25, "relu")
        return kernel(fused, x, constant(weights(4)), constant(weights(4, seed=1)))
