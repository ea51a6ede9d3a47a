"""Reductions of any body, over axes and windows, and gradients of pooling."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from hetero_tvm.errors import UnsupportedOperatorError  # noqa: E402
from hetero_tvm.frontend.stablehlo.importer import import_stablehlo  # noqa: E402
from tests.frontend.stablehlo.test_importer import exported, same_as_jax  # noqa: E402

M, IMAGE = (6, 7), (2, 9, 10, 3)


def smallest(x, size, stride, padding):
    return lax.reduce_window(x, jnp.inf, lax.min, (1, size, size, 1), (1, stride, stride, 1), padding)


def largest(x, size, stride, padding):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, size, size, 1), (1, stride, stride, 1), padding)


def gradient(size, stride, padding):
    return jax.grad(lambda x: (largest(x, size, stride, padding) ** 2).sum())


def spread(x, y):
    """A reduction of two tensors at once: the product of sums of pairs."""
    return lax.reduce((x, y), (1.0, 0.0), lambda a, b: (a[0] * b[0], a[0] * b[1] + a[1]), (1,))


def of_integers(x):
    return lax.reduce_window((x * 9).astype(int), 0, lax.add, (2, 3), (1, 2), "SAME")


FUNCTIONS = {
    "smallest": (lambda x: (smallest(x, 2, 2, "VALID"), smallest(x, 3, 1, "SAME")), [IMAGE]),
    "of integers": (of_integers, [M]),
    "running": (lambda x: (lax.cumprod(x, 1), lax.cummax(x, 0), lax.cummin(x, 1, reverse=True)), [M]),
    "running logarithms": (lambda x: lax.cumlogsumexp(x, axis=0), [M]),
    "of pairs": (spread, [M, M]),
    "places of truths": (lambda x: (jnp.argmax(x > 0, 1), jnp.argmin(x > -1, 0)), [M]),
    "along no axis": (lambda x: lax.reduce(x > 0, False, lax.bitwise_or, ()), [M]),
    "of bits": (lambda x: lax.reduce(x > 0, False, lax.bitwise_xor, (0,)), [M]),
    "gradient": (gradient(2, 2, "VALID"), [IMAGE]),
    "gradient of overlaps": (gradient(3, 2, "SAME"), [IMAGE]),
    "gradient of ties": (lambda x: gradient(3, 1, "SAME")(jnp.round(x)), [IMAGE]),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_reductions(name):
    same_as_jax(*FUNCTIONS[name])


def test_windows_of_many_elements_are_refused():
    def wide(x):
        return lax.reduce_window(x, jnp.inf, lax.min, (20, 20), (1, 1), "VALID")

    with pytest.raises(UnsupportedOperatorError, match="windows of 400 elements"):
        import_stablehlo(exported(wide, [(30, 30)]))


def test_infinite_numbers_are_reduced_too():
    def draw(model):
        values = np.array([[np.inf, -np.inf, 1, 2, -3, 0, -1]] * 6, "float32")
        return {model.signature.inputs[0].name: values}

    same_as_jax(lambda x: (lax.cummax(x, 1), x.max(1), lax.cummin(x, 0)), [M], draw=draw)
