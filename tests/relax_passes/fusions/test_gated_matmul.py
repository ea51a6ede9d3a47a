"""Gated MLPs in their forms, and products of activations that are none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.relax_passes.fusions.gated_matmul import FuseGatedMatmul
from hetero_tvm.relax_passes.fusions.gelu import FuseGelu
from hetero_tvm.relax_passes.fusions.silu import FuseQuickGelu, FuseSilu
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

X = {"x": (2, 3, 6)}
ACTIVATIONS = {
    "silu": op.nn.silu,
    "gelu_erf": op.nn.gelu,
    "gelu_tanh": op.nn.gelu_tanh,
    "relu": op.nn.relu,
    "sigmoid": op.sigmoid,
}


def linear(emit, x, n=4, bias=False, seed=0, rows=False):
    k = int(x.ty.shape[-1])
    if rows:
        x = emit(op.reshape(x, (-1, k)))
    y = emit(op.matmul(x, constant(weights(k, n, seed=seed))))
    if bias:
        y = emit(op.add(y, constant(weights(n, seed=seed + 7))))
    return emit(op.reshape(y, (2, 3, n))) if rows else y


def two(emit, x, activation="silu", biases=(False, False), gate_first=True, rows=False):
    gate = emit(ACTIVATIONS[activation](linear(emit, x, bias=biases[0], rows=rows)))
    up = linear(emit, x, bias=biases[1], seed=1, rows=rows)
    return emit(op.multiply(gate, up) if gate_first else op.multiply(up, gate))


def one(emit, x, activation="silu", bias=False, gate=0, slices=False):
    both = linear(emit, x, n=8, bias=bias)
    if slices:
        cuts = [((0,), (4,)), ((4,), (2**62,))]
        halves = [emit(op.strided_slice(both, [2], begin, end, [1])) for begin, end in cuts]
    else:
        pieces = emit(op.split(both, 2, -1))
        halves = [emit(pieces[0]), emit(pieces[1])]
    return emit(op.multiply(emit(ACTIVATIONS[activation](halves[gate])), halves[1 - gate]))


def fused(body, inputs=X):
    before = module(inputs, body)
    after, names, report = fuse(before, FuseGelu(), FuseSilu(), FuseQuickGelu(), FuseGatedMatmul())
    assert report.fusions["gated_mlp"] == 1 and not report.misses
    assert names_of(before) <= set().union(*names.values())
    assert calls(after)["gated_matmul"] == 1 and calls(after)["matmul"] == calls(after)["multiply"] == 0
    same_numbers(before, after)
    return contracts(after, "gated_matmul")[0]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("biases", [(False, False), (True, True), (True, False), (False, True)])
@pytest.mark.parametrize("gate_first", [True, False])
def test_two_products(activation, biases, gate_first):
    found = fused(lambda e, x: two(e, x, activation, biases, gate_first))
    assert (found.lead, found.n, found.k) == ((2, 3), 4, 6)
    assert (found.activation, found.biased) == (activation, any(biases))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gate", [0, 1])
@pytest.mark.parametrize("slices", [False, True])
def test_one_product_in_halves(bias, gate, slices):
    found = fused(lambda e, x: one(e, x, "gelu_erf", bias, gate, slices))
    assert (found.n, found.k, found.biased) == (4, 6, bias)


def test_products_of_flattened_rows():
    assert fused(lambda e, x: two(e, x, biases=(True, True), rows=True)).lead == (2, 3)


def test_silu_is_counted_as_well():
    before = module(X, lambda e, x: two(e, x))
    after, _, report = fuse(before)
    assert report.fusions == {"silu": 1, "gated_mlp": 1}
    assert dict(calls(after)) == {"gated_matmul": 1}


def refused(body, inputs=X):
    before = module(inputs, body)
    after, _, report = fuse(before, FuseGatedMatmul())
    assert calls(after) == calls(before) and not report.fusions
    same_numbers(before, after)
    return [miss["reason"] for miss in report.misses]


def test_different_inputs():
    def body(emit, x, y):
        return emit(op.multiply(emit(op.nn.silu(linear(emit, x))), linear(emit, y, seed=1)))

    assert "different inputs" in refused(body, {"x": (2, 3, 6), "y": (2, 3, 6)})[0]


@pytest.mark.parametrize("which", ["gate", "up", "product"])
def test_used_outside(which):
    def body(emit, x):
        product = linear(emit, x)
        gate = emit(op.nn.silu(product))
        up = linear(emit, x, seed=1)
        return emit(op.multiply(gate, up)), {"gate": gate, "up": up, "product": product}[which]

    assert "outside the gate" in refused(body)[0]


def test_a_piece_used_outside():
    def body(emit, x):
        pieces = emit(op.split(linear(emit, x, n=8), 2, -1))
        halves = [emit(pieces[0]), emit(pieces[1])]
        return emit(op.multiply(emit(op.nn.silu(halves[0])), halves[1])), halves[1]

    assert "outside the gate" in refused(body)[0]


@pytest.mark.parametrize(
    "body",
    [
        lambda e, x: e(op.multiply(e(op.nn.silu(linear(e, x))), e(op.tanh(linear(e, x, seed=1))))),
        lambda e, x: e(op.add(e(op.nn.silu(linear(e, x))), linear(e, x, seed=1))),
        lambda e, x: e(op.multiply(e(op.nn.silu(x)), linear(e, x, n=6))),
        lambda e, x: e(op.multiply(e(op.nn.silu(linear(e, x))), linear(e, x, n=1))),
        lambda e, x: e(op.multiply(linear(e, x), linear(e, x, seed=1))),
    ],
)
def test_what_is_no_gate(body):
    assert refused(body) == []


def test_thirds_are_no_halves():
    def body(emit, x):
        pieces = emit(op.split(linear(emit, x, n=12), 3, -1))
        return emit(op.multiply(emit(op.nn.silu(emit(pieces[0]))), emit(pieces[1])))

    assert refused(body) == []


@settings(max_examples=20)
@given(st.data())
def test_random_shapes(data):
    sizes = st.integers(1, 7)
    lead = data.draw(st.lists(sizes, min_size=1, max_size=3))
    k, n, packed, bias = (
        data.draw(sizes),
        data.draw(sizes),
        data.draw(st.booleans()),
        data.draw(st.booleans()),
    )

    def body(emit, x):
        if packed:
            pieces = emit(op.split(linear(emit, x, 2 * n, bias), 2, -1))
            return emit(op.multiply(emit(op.nn.gelu(emit(pieces[0]))), emit(pieces[1])))
        gate = emit(op.nn.gelu(linear(emit, x, n, bias)))
        return emit(op.multiply(gate, linear(emit, x, n, seed=1)))

    before = module({"x": (*lead, k)}, body)
    after, _, report = fuse(before)
    assert report.fusions == {"gelu": 1, "gated_mlp": 1}
    same_numbers(before, after)


class TestFuseGatedMatmul(Rewrite):
    rule = FuseGatedMatmul()

    def before(self, x):
        gate, up = (op.matmul(x, constant(weights(4, 5, seed=seed))) for seed in range(2))
        return op.multiply(op.nn.silu(gate), up)

    def expected(self, x):
        both = np.concatenate([weights(4, 5, seed=seed) for seed in range(2)], 1)
        return kernel(GatedMatmul((2, 3), 5, 4, "silu"), x, constant(both))


def test_a_sum_of_scalars_is_no_product():
    def body(emit, x):
        total = emit(op.add(emit(op.sum(x)), constant(1.0)))
        return emit(op.multiply(emit(op.sigmoid(total)), total))

    _, _, report = fuse(module(X, body), FuseGatedMatmul())
    assert not report.fusions
