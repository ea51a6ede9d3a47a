"""Quotients and remainders of indices: falling, mixed, nested, in loops and in vectors."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.codegen.quotients.divided_indices import divide_what_rises
from hetero_tvm.host.tvm import Schedule, te, tirx, tvm
from tests.selection import named

V, W = 6, 4
X = np.arange(400, dtype="float32")


def quotient(a, m):
    return tirx.floordiv(a, tirx.const(m, "int64")) if hasattr(a, "ty") else a // m


def remainder(a, m):
    return tirx.floormod(a, tirx.const(m, "int64")) if hasattr(a, "ty") else a % m


INDICES = {
    "rising": lambda c, v, w: c + v + 6 * w,
    "falling": lambda c, v, w: c - v,
    "falling by two": lambda c, v, w: c - 2 * v,
    "both falling": lambda c, v, w: c - v - 6 * w,
    "one of each": lambda c, v, w: c - v + 6 * w,
    "the other of each": lambda c, v, w: c + 4 * v - w,
    "a falling quotient": lambda c, v, w: c - quotient(v, 2),
    "a falling remainder": lambda c, v, w: c - remainder(v, 3) - w,
    "of a falling remainder": lambda c, v, w: quotient(remainder(c - v, 10), 2),
    "twice turned": lambda c, v, w: c - remainder(c - v, 5),
    "a shifted remainder": lambda c, v, w: remainder(6 * w + v + c, 10) + c,
    "a shifted quotient": lambda c, v, w: quotient(6 * w + v, 5) + c,
}


def places(index, constant, divisor, divide, kind):
    """What a loop over ``Y[w, v] = X[divide(index, divisor)]`` reads."""
    x = tirx.decl_buffer(X.shape, "float32", name="X")
    y = tirx.decl_buffer((W, V), "float32", name="Y")
    v, w = tirx.Var("v", "int64"), tirx.Var("w", "int64")
    zero, rows, columns = (tirx.const(n, "int64") for n in (0, W, V))
    read = tirx.BufferLoad(x, [divide(index(tirx.const(constant, "int64"), v, w), divisor)])
    inner = tirx.For(v, zero, columns, kind, tirx.BufferStore(y, read, [w, v]))
    loop = tirx.For(w, zero, rows, tirx.ForKind.SERIAL, inner)
    return tirx.PrimFunc([x, y], loop).with_attr("s_tir", True)


@pytest.mark.parametrize("kind", [tirx.ForKind.SERIAL, tirx.ForKind.VECTORIZED], ids=["loop", "vector"])
@pytest.mark.parametrize(
    "index",
    named(
        INDICES,
        {
            "rising",
            "falling",
            "falling by two",
            "one of each",
            "a falling quotient",
            "a falling remainder",
            "twice turned",
            "a shifted quotient",
        },
    ),
)
def test_places(index, kind, pick):
    cases = [
        (constant, divisor, divide)
        for constant in (24, 29, 30, 35)
        for divisor in (2, 5, 7, 10)
        for divide in (quotient, remainder)
    ]
    cases = pick(cases, 13)  # of each constant, divisor and operation
    functions = {
        f"f{n}": places(index, *case, kind).with_attr("global_symbol", f"f{n}")
        for n, case in enumerate(cases)
    }
    library = compile_kernels(tvm.IRModule(functions), tvm.target.Target("llvm"))
    v, w = np.meshgrid(np.arange(V), np.arange(W))
    for n, (constant, divisor, divide) in enumerate(cases):
        found = tvm.runtime.tensor(np.full((W, V), -1, "float32"))
        library[f"f{n}"](tvm.runtime.tensor(X), found)
        expected = divide(index(constant, v, w), divisor)
        np.testing.assert_array_equal(found.numpy(), expected, err_msg=f"{constant} {divisor} {divide}")


@pytest.mark.parametrize("kind", [tirx.ForKind.SERIAL, tirx.ForKind.VECTORIZED], ids=["loop", "vector"])
@pytest.mark.parametrize("divisor", [2, 5, 7])
def test_what_falls_behind_a_name(divisor, kind):
    """The fall shows where names are put in place: while blocks are lowered."""
    x = tirx.decl_buffer(X.shape, "float32", name="X")
    y = tirx.decl_buffer((V,), "float32", name="Y")
    v, u = tirx.Var("v", "int64"), tirx.Var("u", "int64")
    read = tirx.BufferLoad(x, [remainder(u, divisor)])
    body = tirx.SeqStmt([tirx.Bind(u, tirx.const(24, "int64") - v), tirx.BufferStore(y, read, [v])])
    loop = tirx.For(v, tirx.const(0, "int64"), tirx.const(V, "int64"), kind, body)
    function = tirx.PrimFunc([x, y], loop).with_attr("global_symbol", "main").with_attr("s_tir", True)
    found = tvm.runtime.tensor(np.full(V, -1, "float32"))
    compile_kernels(function, tvm.target.Target("llvm"))["main"](tvm.runtime.tensor(X), found)
    np.testing.assert_array_equal(found.numpy(), (24 - np.arange(V)) % divisor)


@pytest.mark.parametrize("divisor", [2, 3, 5])
def test_a_producer_moved_into_its_flipped_consumer(divisor):
    a = te.placeholder((divisor,), name="a")
    b = te.compute((24,), lambda i: te.exp(a[i % divisor]), name="b")
    c = te.compute((24,), lambda i: b[23 - i] * 2, name="c")
    sch = Schedule(te.create_prim_func([a, c]))
    sch.compute_at(sch.get_sblock("b"), sch.get_loops(sch.get_sblock("c"))[0])
    function = sch.mod["main"].with_attr("global_symbol", "main")
    given = np.linspace(-1, 1, divisor, dtype="float32")
    found = tvm.runtime.tensor(np.zeros(24, "float32"))
    compile_kernels(function, tvm.target.Target("llvm"))["main"](tvm.runtime.tensor(given), found)
    np.testing.assert_allclose(found.numpy(), 2 * np.exp(given)[(23 - np.arange(24)) % divisor], rtol=1e-6)


def test_what_rises_stays():
    module = tvm.IRModule({"main": places(INDICES["rising"], 3, 5, quotient, tirx.ForKind.SERIAL)})
    tvm.ir.assert_structural_equal(divide_what_rises(module), module)
