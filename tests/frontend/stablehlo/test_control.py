"""Loops and branches: what rounds stack, what decides when they end, and what they see around them."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from hetero_tvm.api import build_model, optimize_model  # noqa: E402
from hetero_tvm.frontend.stablehlo.importer import import_stablehlo  # noqa: E402
from tests.frontend.stablehlo.test_importer import drawn, exported, same_as_jax  # noqa: E402

V = (8,)


def scanned(x, h, **options):
    def step(state, row):
        state = jnp.tanh(state * 0.5 + row)
        return state, (state * 2, row.sum())

    return lax.scan(step, h, x, **options)


def read_again(x):
    """A state that rounds write and read: no stack."""
    return lax.fori_loop(0, 4, lambda i, v: v.at[i + 1].set(v[i] * 0.5 + v.sum()), x)


def nested(x):
    def outer(i, v):
        return lax.fori_loop(0, i + 1, lambda j, u: u * 0.9 + j, v)

    return lax.fori_loop(0, 3, outer, x)


def by_values(x):
    return lax.while_loop(lambda c: c[0].sum() < 99, lambda c: (c[0] * 1.5 + 1, c[1] + 1), (x, 0))


def switch(x):
    return lax.switch((x[0] * 3).astype(int), [lambda v: v + 1, lambda v: v * 2, jnp.sin], x)


FUNCTIONS = {
    "scan": (scanned, [(5, 8), V]),
    "scan from behind": (lambda x, h: scanned(x, h, reverse=True), [(5, 8), V]),
    "scan of pieces": (lambda x, h: scanned(x, h, unroll=2), [(5, 8), V]),
    "scan of many": (scanned, [(300, 8), V]),
    "columns": (lambda x, h: scanned(x.T, h)[1][0].T, [(8, 5), V]),
    "counted": (lambda x: lax.fori_loop(2, 7, lambda i, v: v * 0.9 + i, x), [V]),
    "read again": (read_again, [V]),
    "nested": (nested, [V]),
    "by values": (by_values, [V]),
    "never": (lambda x: lax.while_loop(lambda c: (c * c).sum() < 0, lambda c: c + 1, x), [V]),
    "condition": (lambda x: lax.cond(x[0] > 0, lambda v: (v * 2, v), lambda v: (v - 1, x + v), x), [V]),
    "switch": (switch, [V]),
    "search": (lambda a, b: jnp.searchsorted(jnp.sort(a), b), [V, V]),
    "associative": (lambda x: lax.associative_scan(lambda a, b: a * b + b, x), [V]),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_loops(name):
    same_as_jax(*FUNCTIONS[name])


def test_a_scan_gives_rows():
    """No round copies what the rounds before it have stacked."""
    graph = import_stablehlo(exported(*FUNCTIONS["scan from behind"])).onnx_model.graph
    assert not [node for node in graph.node if node.op_type.startswith("Scatter")]


@pytest.mark.parametrize("name", ["scan of many", "read again", "by values", "condition", "switch"])
def test_block_of_rounds_is_built(name):
    function, shapes = FUNCTIONS[name]
    model = import_stablehlo(exported(function, shapes))
    built = build_model(optimize_model(model), use_shipped=False)
    for _ in range(2):
        inputs = drawn(model)
        expected = jax.tree_util.tree_leaves(jax.jit(function)(*inputs.values()))
        for found, wanted in zip(built.run(inputs), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
