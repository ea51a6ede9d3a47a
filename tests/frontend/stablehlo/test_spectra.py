"""Eigenvalues and singular values beside JAX: vectors by what they make together, as their signs are free."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

import jax.numpy as jnp  # noqa: E402

from hetero_tvm.api import build_model, import_model, optimize_model  # noqa: E402
from tests.frontend.stablehlo.test_importer import exported, same_as_jax  # noqa: E402


def with_eigenvalues(x):
    """Eigenvalues, the matrix put together again, and what vectors are among one another."""
    a = x + x.mT
    values, vectors = jnp.linalg.eigh(a)
    return values, vectors * values[..., None, :] @ vectors.mT, vectors.mT @ vectors, jnp.linalg.eigvalsh(a)


def with_singular_values(x):
    found = []
    for full in (True, False):
        u, s, v = jnp.linalg.svd(x, full_matrices=full)
        count = s.shape[-1]
        whole = u[..., :count] * s[..., None, :] @ v[..., :count, :]
        found += [s, whole, u.mT @ u, v @ v.mT]
    return [*found, jnp.linalg.svd(x, compute_uv=False)]


def solutions(x, b):
    inverse, (found, *_) = jnp.linalg.pinv(x), jnp.linalg.lstsq(x, b)
    return inverse, found, jnp.linalg.matrix_rank(x), jnp.linalg.norm(x, 2), jnp.linalg.norm(x, "nuc")


FUNCTIONS = {
    **{f"eigenvalues of {s}": (with_eigenvalues, [s]) for s in ((1, 1), (2, 2), (2, 3, 5, 5), (12, 12))},
    "equal eigenvalues": (lambda x: with_eigenvalues(0 * x + jnp.ones((6, 6))), [(6, 6)]),
    **{f"values of {s}": (with_singular_values, [s]) for s in ((1, 1), (4, 1), (2, 5, 3), (3, 8), (9, 9))},
    "rank two": (lambda x: with_singular_values(x[:, :2] @ x[:2]), [(5, 5)]),
    "zeros": (lambda x: with_singular_values(0 * x), [(4, 3)]),
    "large and small": (
        lambda x: (jnp.linalg.eigvalsh(x * 1e30) / 1e30, jnp.linalg.svd(x * 1e-30)[1]),
        [(4, 4)],
    ),
    "solutions": (solutions, [(6, 3), (6,)]),
    "no numbers": (lambda x: (jnp.linalg.eigh(x / 0)[0], jnp.linalg.svd(x / 0)[1]), [(3, 3)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_the_same_as_of_jax(name):
    same_as_jax(*FUNCTIONS[name])


@pytest.mark.thorough
def test_a_build_has_the_same_values_as_jax():
    """48 columns: some hundred rounds of a loop."""
    x = np.random.default_rng(0).standard_normal((48, 48)).astype(np.float32)
    built = build_model(
        optimize_model(import_model(exported(with_eigenvalues, [x.shape]))), use_shipped=False
    )
    (name,) = (one.name for one in built.optimized.model.signature.inputs)
    for found, wanted in zip(built.run({name: x}), with_eigenvalues(x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)
