"""Sorts order by the keys that their comparisons read."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from hetero_tvm.errors import UnsupportedOperatorError  # noqa: E402
from hetero_tvm.frontend.stablehlo.importer import import_stablehlo  # noqa: E402
from tests.frontend.stablehlo.test_importer import exported, same_as_jax  # noqa: E402

M = (5, 7)


def coarse(x):
    """Numbers of which many are equal; no zeros of two signs, which XLA tells apart where it fuses."""
    return jnp.round(jnp.abs(x) * 2)


FUNCTIONS = {
    "values": (lambda x: (jnp.sort(x), jnp.sort(x, 0, descending=True)), [M]),
    "order": (lambda x: (jnp.argsort(coarse(x), 0), jnp.argsort(coarse(x), 1, descending=True)), [M]),
    "beside others": (lambda x, y, z: lax.sort((coarse(x), y, z), dimension=1, num_keys=1), [M, M, M]),
    "by two keys": (lambda x, y, z: lax.sort((coarse(x), coarse(y), z), dimension=0, num_keys=2), [M, M, M]),
    "lexical": (lambda x, y: jnp.lexsort((y, coarse(x))), [(9,), (9,)]),
    "integers": (lambda x: jnp.sort((x * 9).astype(jnp.int32)), [M]),
    "booleans": (lambda x: (jnp.sort(x > 0), jnp.argsort(x > 0)), [M]),
    "first few": (lambda x: lax.top_k(coarse(x), 3), [M]),
    "nearly the largest": (lambda x: lax.approx_max_k(coarse(x), 3), [M]),
    "nearly the smallest": (lambda x: lax.approx_min_k(coarse(x), 2, reduction_dimension=0), [M]),
    "ranks": (lambda x: (jnp.median(x, 1), jnp.quantile(x, 0.3), jnp.unique(coarse(x), size=4)), [M]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_order(name):
    same_as_jax(*FUNCTIONS[name])


def test_nan_and_zeros_of_both_signs_keep_their_places():
    def draw(model):
        values = np.array(
            [[0.0, np.nan, -0.0, np.inf, -np.inf, 1, np.nan], [-0.0, 0, 0, -1, 1, np.nan, -0.0]]
        )
        return {model.signature.inputs[0].name: values.astype("float32")}

    same_as_jax(lambda x: (jnp.sort(x), jnp.argsort(x)), [(2, 7)], draw=draw)


def test_other_comparisons_are_refused():
    def by_distance(x):
        return lax.sort(x * 1j, dimension=0).imag

    with pytest.raises(UnsupportedOperatorError, match="sort"):
        import_stablehlo(exported(by_distance, [(5,)]))
