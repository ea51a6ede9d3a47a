"""Softmax and means are found in what JAX writes for them, and in nothing else."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from hetero_tvm.frontend.stablehlo.importer import import_stablehlo  # noqa: E402


def kinds(function, shape=(4, 6)):
    program = jax.export.export(jax.jit(function))(jax.ShapeDtypeStruct(shape, np.float32))
    return [node.op_type for node in import_stablehlo(program).onnx_model.graph.node]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_it_is_found_on_every_axis(axis):
    assert kinds(lambda x: jax.nn.softmax(x, axis=axis)).count("Softmax") == 1
    assert "ReduceSum" not in kinds(lambda x: jax.nn.softmax(x, axis=axis))
    assert kinds(lambda x: jax.nn.softmax(x, axis=axis), (2, 4, 4, 6)).count("Softmax") == 1


def test_what_only_looks_like_it_is_left():
    def other_axis(x):
        e = jnp.exp(x - x.max(0, keepdims=True))
        return e / e.sum(1, keepdims=True)

    def unshifted(x):
        return jnp.exp(x) / jnp.exp(x).sum(1, keepdims=True)

    def transposed(x):  # the sums lie along the wrong axis of a square
        e = jnp.exp(x - x.max(1, keepdims=True))
        return e / e.sum(1)[None, :]

    assert "Softmax" not in kinds(other_axis) + kinds(unshifted) + kinds(transposed, (5, 5))


@pytest.mark.parametrize("axis", [0, -1, (0, 1), None])
@pytest.mark.parametrize("keepdims", [False, True])
def test_means_are_found(axis, keepdims):
    found = kinds(lambda x: x.mean(axis, keepdims=keepdims))
    assert "ReduceMean" in found and "Mul" not in found and "Div" not in found


def test_what_is_no_mean_is_left():
    def other_count(x):
        return x.sum(1) / 5

    def of_integers(x):
        return (x > 0).astype(int).sum(1) / 6

    def spread(x):
        return jnp.broadcast_to(x.sum(1)[:, None], x.shape) / 6

    def of_nothing(x):
        return lax.reduce(x, np.float32(0), lax.add, ()) / 1

    for function in (other_count, of_integers, spread, of_nothing):
        assert "ReduceMean" not in kinds(function)
