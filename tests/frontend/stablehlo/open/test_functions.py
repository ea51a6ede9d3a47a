"""Functions that are called at several sizes, composites and windows of programs of open sizes."""

import numpy as np
import pytest

pytest.importorskip("jax")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax import export, lax  # noqa: E402

from hetero_tvm import Span  # noqa: E402
from hetero_tvm.api import build_model, import_model, optimize_model  # noqa: E402
from hetero_tvm.frontend.stablehlo.load import read_program  # noqa: E402
from hetero_tvm.frontend.stablehlo.sizes import declared_sizes, sized  # noqa: E402


def opened(function):
    (rows,) = export.symbolic_shape("n")
    return export.export(jax.jit(function))(jax.ShapeDtypeStruct((rows, 8), "float32"))


def refined(function, rows):
    """Text of a program for so many rows."""
    module = read_program(opened(function))
    return str(sized(module, declared_sizes(module, ["x"]), {"x": (rows, 8)}, "the program"))


def serves(function, sizes):
    """Assert that one library for all sizes from the first to the last has JAX's results at each of these."""
    model = import_model(opened(function), shapes={"n": (Span(sizes[0], sizes[-1]),)})
    built = build_model(optimize_model(model))
    for rows in sizes:
        x = np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)
        results = built.run({model.signature.inputs[0].name: x})
        for got, want in zip(results, jax.tree.leaves(jax.jit(function)(x)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def mixed(x):
    """Calls of one function at several sizes, and a function that calls another twice."""
    shorter = jnp.where(x[:-1] > 0, x[:-1], 0)
    return jnp.roll(jnp.where(x > 0, x, -1)[::-1], 1, 0), shorter


@pytest.mark.parametrize("rows", [2, 5])
def test_functions_called_at_several_sizes_are_refined(rows):
    text = refined(mixed, rows)
    main = text.partition("@main")[2].partition("func.func")[0]
    assert "call @" not in main
    assert f"tensor<{rows}x8xf32>" in main


def test_a_size_may_equal_a_number_that_a_function_takes():
    def halves(x):
        return (x * 100).astype("int32") // 7

    assert "tensor<7x8xi32>" in refined(halves, 7)


@pytest.mark.parametrize(
    "function",
    [lambda x: lax.top_k(x, 3), jax.scipy.special.erf, lambda x: jnp.sinh(x)],
    ids=["top_k", "erf", "sinh"],
)
def test_composites_are_refined(function):
    assert "stablehlo.composite" not in refined(function, 5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.cumsum(x, 0),
        lambda x: lax.cumlogsumexp(x, 0),
        lambda x: jnp.cumsum(jnp.cumsum(x, 0), 0),
    ],
    ids=["sums", "logarithms", "twice"],
)
def test_windows_of_open_sizes_become_windows(function):
    text = refined(function, 5)
    assert "dynamic_reduce_window" not in text and "stablehlo.reduce_window" in text
    assert "?" not in text.partition("stablehlo.reduce_window")[2]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "function",
    [
        mixed,
        lambda x: lax.top_k(x, 3),
        lambda x: jnp.cumsum(x, 0),
        lambda x: lax.cumsum(x, 0, reverse=True),
        lambda x: jnp.cumprod(x, 0),
        lambda x: (lax.cummax(x, 0, reverse=True), lax.cumlogsumexp(x.T, 1)),
        lambda x: lax.cummin((x * 9).astype("int32"), 0),
        lambda x: jax.nn.gelu(x, approximate=False),
    ],
    ids=["functions", "top_k", "sums", "sums from the end", "products", "extrema", "whole", "gelu"],
)
def test_one_library_serves_open_sizes(function):
    serves(function, (2 if function is mixed else 1, 5, 9))
