"""Reads and writes at places that are known at run time compute what JAX computes, outside the tensor too."""

import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from hetero_tvm.errors import HeteroTVMError  # noqa: E402
from tests.frontend.stablehlo.test_importer import same_as_jax  # noqa: E402

M = (10, 4)


def places(x, most=12):
    """Indices that follow from numbers, some of them outside."""
    return (jnp.abs(x) * 6).astype(jnp.int32) % most


def beside_slices(x, i):
    return x[:, places(i, 5), 1:3], x[1:3, places(i, 5), places(i, 5)]


def by_batch(x, i, u):
    return jax.vmap(lambda r, k, v: r.at[k].add(v))(x, places(i, 6), u)


FUNCTIONS = {
    "pairs": (lambda x, i, j: x[places(i), places(j, 4)], [M, (6,), (6,)]),
    "along": (lambda x, i: jnp.take_along_axis(x, places(i, 10)[:, :, None], 1), [(3, 10, 2), (3, 5)]),
    "beside slices": (beside_slices, [(5, 5, 5), (4,)]),
    "in a batch": (
        lambda x, i: jax.vmap(lambda r, k: lax.dynamic_slice(r, (k,), (2,)))(x, places(i)), [M, (10,)]
    ),
    "diagonals": (lambda x: (jnp.diag(x), jnp.diagonal(x, 1), jnp.diag(x[0])), [(5, 5)]),
    "set": (lambda x, i, u: x.at[places(i)].set(u[0]), [M, (3,), (3, 4)]),
    "added": (lambda x, i, u: x.at[places(i)].add(u), [M, (8,), (8, 4)]),
    "largest": (lambda x, i, j, u: x.at[places(i), places(j, 4)].max(u), [M, (6,), (6,), (6,)]),
    "smallest": (lambda x, i, u: x.at[:, places(i, 5)].min(u), [M, (2,), (10, 2)]),
    "multiplied": (lambda x, i, u: x.at[places(i)].multiply(u), [M, (8,), (8, 4)]),
    "applied": (lambda x, i: x.at[places(i)[0]].apply(lambda v: jnp.tanh(v) * 2 + 1), [M, (1,)]),
    "applied outside too": (
        lambda x, i: x.at[jnp.argsort(i) * 3, 1].apply(jnp.exp, unique_indices=True, mode="drop"), [M, (6,)]
    ),
    "by a batch": (by_batch, [M, (10,), (10,)]),
    "segments": (lambda x, i: jax.ops.segment_sum(x, places(i, 4), num_segments=3), [M, (10,)]),
    "window": (lambda x, u, i: lax.dynamic_update_slice(x, u, (places(i)[0], 1)), [M, (3, 2), (1,)]),
    "slice": (lambda x, i: (lax.dynamic_slice(x, (places(i)[0], 1), (3, 2)), x[places(i)[0]]), [M, (1,)]),
    "one hot and picked": (
        lambda x, i: (jax.nn.one_hot(places(i, 4), 4) * x, jnp.take_along_axis(x, places(i, 4)[:, None], 1)),
        [M, (10,)],
    ),
}  # fmt: skip


def test_what_is_applied_at_places_that_may_be_equal_is_refused():
    with pytest.raises(HeteroTVMError, match="unique_indices=True"):
        same_as_jax(lambda x, i: x.at[places(i)].apply(jnp.exp), [M, (3,)])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_parts_are_read_and_written(name):
    same_as_jax(*FUNCTIONS[name])
