"""Factors and triangular systems, of JAX's calls of LAPACK, beside JAX."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

import jax.numpy as jnp  # noqa: E402
import jax.scipy.linalg as jl  # noqa: E402

from tests.frontend.stablehlo.test_importer import same_as_jax  # noqa: E402


def positive(x):
    """A positive definite matrix of any one, or one beside each of a batch."""
    return x @ x.mT + 5 * jnp.eye(x.shape[-1])


def triangles(x, b):
    a = positive(x)
    return [
        jl.solve_triangular(a, b, lower=lower, trans=trans, unit_diagonal=unit)
        for lower, trans, unit in ((True, 0, False), (False, 0, True), (True, 1, True), (False, 1, False))
    ]


S = (2, 5, 5)
FUNCTIONS = {
    "cholesky": (lambda x: (jnp.linalg.cholesky(positive(x)), jl.cholesky(positive(x), lower=False)), [S]),
    "no factor": (lambda x: jnp.linalg.cholesky(x @ x.mT - 9 * jnp.eye(5)), [S]),
    "triangles": (triangles, [(5, 5), (5, 3)]),
    "systems": (
        lambda x, b: (jnp.linalg.solve(x, b), jl.cho_solve(jl.cho_factor(positive(x)), b)),
        [(5, 5), (5, 2)],
    ),
    "inverses": (lambda x: (jnp.linalg.inv(positive(x)), jnp.linalg.det(x), jnp.linalg.slogdet(x)), [S]),
    "lu of rows": (lambda x: jl.lu(x), [(5, 3)]),
    "qr of rows": (
        lambda x: (jnp.linalg.qr(x), jnp.linalg.qr(x.mT), jnp.linalg.qr(x, mode="complete")),
        [(2, 5, 3)],
    ),
    "gradient": (jax.grad(lambda x: jnp.linalg.slogdet(positive(x))[1].sum()), [S]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_factors_are_the_same_as_of_jax(name):
    same_as_jax(*FUNCTIONS[name])


def test_a_matrix_without_factors_has_the_pivot_of_lapack():
    """The last pivot of a singular matrix is 0, and so are its determinant and the sign."""
    singular = np.array([[1.0, 2.0], [2.0, 4.0]], np.float32)
    same_as_jax(lambda x: jnp.linalg.det(singular + 0 * x), [(2, 2)])
