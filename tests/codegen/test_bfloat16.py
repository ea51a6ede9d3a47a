"""bfloat16 in kernels: what is read, computed and rounded is right, in vectors and alone."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from hetero_tvm import Span
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.codegen.bfloat16 import convert_once
from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tirx, tvm
from tests.frontend.onnx.helpers import text_model

X = np.array([0.82, -1.4, 2.75, -0.1, 3.0, 0.0, -2.5, 1.0], ml_dtypes.bfloat16)


def ran(value: Callable, kind: int, out: str = "bfloat16") -> np.ndarray:
    """What a loop over ``Y[i] = value(X, i)`` gives."""
    x = tirx.decl_buffer(X.shape, "bfloat16", name="X")
    y = tirx.decl_buffer(X.shape, out, name="Y")
    i = tirx.Var("i", "int32")
    loop = tirx.For(i, 0, len(X), kind, tirx.BufferStore(y, value(x, i), [i]))
    func = tirx.PrimFunc([x, y], loop).with_attr("global_symbol", "main").with_attr("s_tir", True)
    result = tvm.runtime.tensor(np.zeros(X.shape, np.dtype(getattr(ml_dtypes, out, out))))
    compile_kernels(func, tvm.target.Target("llvm"))["main"](tvm.runtime.tensor(X), result)
    return result.numpy().astype(np.float64)


KINDS = pytest.mark.parametrize(
    "kind", [tirx.ForKind.SERIAL, tirx.ForKind.VECTORIZED], ids=["scalar", "vector"]
)


def wide(x, i):
    return tirx.Cast("float32", tirx.BufferLoad(x, [i]))


@KINDS
@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid", "erf", "sin"])
def test_functions_made_of_bound_values(name, kind):
    from scipy import special

    truth = {"sigmoid": special.expit, "erf": special.erf}.get(name) or getattr(np, name)
    expected = truth(X.astype(np.float64))
    got = ran(lambda x, i: tirx.Cast("bfloat16", getattr(tirx, name)(wide(x, i))), kind)
    np.testing.assert_allclose(got, expected, rtol=2**-8, atol=1e-6)  # rounded once, to 8 bits
    got = ran(lambda x, i: getattr(tirx, name)(wide(x, i)), kind, "float32")
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["asinh", "isnan"])
def test_functions_without_a_form_for_vectors(name):
    """TVM's vectoriser cuts them into scalars, and what is stored with them."""
    kind = tirx.ForKind.VECTORIZED
    if name == "isnan":
        got = ran(lambda x, i: tirx.Select(tirx.isnan(wide(x, i)), wide(x, i), wide(x, 1)), kind, "float32")
        np.testing.assert_array_equal(got, np.full(X.shape, X[1], "float64"))
        return
    got = ran(lambda x, i: tirx.Cast("bfloat16", tirx.asinh(wide(x, i))), kind)
    np.testing.assert_allclose(got, np.arcsinh(X.astype("float64")), rtol=2**-8, atol=1e-6)


VALUES = {
    "a copy": (lambda x, i: tirx.BufferLoad(x, [i]), X),
    "one element": (lambda x, i: tirx.BufferLoad(x, [1]), np.full_like(X, X[1])),
    "a constant": (lambda x, i: tirx.const(1.5, "bfloat16"), np.full_like(X, 1.5)),
    "a choice": (
        lambda x, i: tirx.Select(i > 2, tirx.BufferLoad(x, [0]), tirx.BufferLoad(x, [i])),
        np.where(np.arange(len(X)) > 2, X[0], X),
    ),
    "the same of a choice": (
        lambda x, i: tirx.Cast("bfloat16", tirx.Select(wide(x, i) > 0.0, wide(x, 1), wide(x, 1))),
        np.full_like(X, X[1]),
    ),
    "a sum": (
        lambda x, i: tirx.Cast("bfloat16", wide(x, i) + wide(x, 1)),
        (X.astype("f") + X[1].astype("f")).astype(X.dtype),
    ),
}


@KINDS
@pytest.mark.parametrize("value, expected", VALUES.values(), ids=VALUES)
def test_stores(value, expected, kind):
    np.testing.assert_array_equal(ran(value, kind), expected.astype(np.float64))


def test_loops_without_bfloat16_stay():
    y = tirx.decl_buffer((8,), "float32", name="Y")
    i = tirx.Var("i", "int32")
    loop = tirx.For(i, 0, 8, tirx.ForKind.VECTORIZED, tirx.BufferStore(y, tirx.const(1.0, "float32"), [i]))
    module = tvm.IRModule({"main": tirx.PrimFunc([y], loop).with_attr("s_tir", True)})
    tvm.ir.assert_structural_equal(convert_once(module), module)


@KINDS
def test_a_value_that_is_bound_is_rounded_once(kind):
    """A copy, and a product rounded to the nearest, ties to even, NaN and infinity kept."""
    special = np.array(
        [0.82, -1.4, 1.00390625, 1.01171875, np.nan, np.inf, -np.inf, 3.3e38], ml_dtypes.bfloat16
    )
    x = tirx.decl_buffer(special.shape, "bfloat16", name="X")
    y = tirx.decl_buffer((2, *special.shape), "bfloat16", name="Y")
    i = tirx.Var("i", "int32")
    copy, product = tirx.Var("copy", "bfloat16"), tirx.Var("product", "bfloat16")
    factor = tirx.const(1.005, "float32")
    body = [
        tirx.Bind(copy, tirx.Cast("bfloat16", wide(x, i))),
        tirx.Bind(product, tirx.Cast("bfloat16", wide(x, i) * factor)),
        tirx.BufferStore(y, copy, [0, i]),
        tirx.BufferStore(y, tirx.Cast("bfloat16", tirx.Cast("float32", product)), [1, i]),
    ]
    func = tirx.PrimFunc([x, y], tirx.For(i, 0, len(special), kind, tirx.SeqStmt(body)))
    func = func.with_attr("global_symbol", "main").with_attr("s_tir", True)
    result = tvm.runtime.tensor(np.zeros((2, *special.shape), special.dtype))
    compile_kernels(func, tvm.target.Target("llvm"))["main"](tvm.runtime.tensor(special), result)
    got = result.numpy().astype("float32")
    with np.errstate(over="ignore"):
        expected = (special.astype("float32") * np.float32(1.005)).astype(special.dtype).astype("float32")
    np.testing.assert_array_equal(got[0], special.astype("float32"))
    np.testing.assert_array_equal(got[1], expected)


@pytest.mark.parametrize("rows", ["8", "n"])
@pytest.mark.parametrize("result, apply", [("float", np.abs), ("bfloat16", np.abs), ("float", np.sqrt)])
def test_transposes_of_what_is_widened_and_rounded(rows, result, apply):
    """Squares in registers were widened: whole ones did not compile, those of open rows had other numbers."""
    model = text_model(
        f"""g (bfloat16[{rows},32] x) => ({result}[32,{rows}] y) {{
          wide = Cast <to = 1> (x)
          z = {"Abs" if apply is np.abs else "Sqrt"} (wide)
          turned = Transpose <perm = [1, 0]> (z)
          y = Cast <to = {1 if result == "float" else 16}> (turned)
        }}""",
        opset=21,
        ir=10,
    )
    shapes = {"x": [Span(1, 64), 32]} if rows == "n" else None
    built = build_model(optimize_model(import_model(model, shapes=shapes)))
    for count in (8,) if rows == "8" else (3, 16, 40):
        x = np.random.default_rng(count).uniform(0, 4, (count, 32)).astype(ml_dtypes.bfloat16)
        (got,) = built.run({"x": x})
        expected = apply(x.astype(np.float32)).T
        np.testing.assert_allclose(got.astype(np.float32), expected, rtol=1e-6)
