"""Reductions whose sizes are known at run time: every place of the axes, every tail, few rows and many."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import te, tirx, topi, tvm
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.symbolic import kernels
from tests.schedules.cpu.running import MACHINES, TARGET, UNWRITTEN
from tests.selection import thorough

A, B, C = (tirx.Var(name, "int64") for name in "abc")
SIZES = (
    (1, 1, 1),
    (2, 3, 5),
    (5, 37, 17),
    (3, 130, 70),
    (1, 300, 161),
    (2, 1, 20000),
    (2, 9000, 3),
    (3, 0, 4),
)


def function(axes, keep, kind, dtype, after):
    x = te.placeholder((A, B, C), dtype, name="x")
    kept = [n for n in range(3) if n not in axes]
    terms = [te.reduce_axis((0, x.shape[n]), name=f"k{n}") for n in axes]

    def term(*given):
        at = dict(zip(kept, given, strict=True)) | dict(zip(axes, terms, strict=True))
        value = x[tuple(at[n] for n in range(3))]
        return {"sum": te.sum, "max": te.max, "min": te.min}[kind](
            value * value if after == "squares" else value, axis=terms
        )

    shape = [x.shape[n] for n in kept]
    if keep:
        y = te.compute(
            [1 if n in axes else x.shape[n] for n in range(3)], lambda *at: term(*(at[n] for n in kept))
        )
    else:
        y = te.compute(shape, term)
    if after == "mean":
        count = 1
        for n in axes:
            count = count * x.shape[n]
        whole = y
        y = te.compute(y.shape, lambda *at: whole[at] / tirx.Cast(dtype, count))
    return te.create_prim_func([x, y]).without_attr("global_symbol")


@pytest.mark.parametrize(
    ("axes", "keep", "kind", "dtype", "after"),
    [
        ((2,), False, "max", "float32", ""),
        ((1, 2), True, "sum", "float32", "mean"),
        *thorough([((0, 1, 2), False, "min", "float32", "")]),
        ((1,), False, "sum", "float32", "squares"),
        *thorough([((0, 1), False, "sum", "float64", "mean")]),
        ((0, 2), True, "max", "int32", ""),
        *thorough(
            [
                ((0,), True, "max", "int64", ""),
                ((0, 2), False, "sum", "float32", "mean"),
                ((0, 1, 2), False, "sum", "float32", "mean"),
            ]
        ),
    ],
)
def test_values(axes, keep, kind, dtype, after):
    for here in (MACHINES["avx2"], CpuModel("one", lanes=16, registers=32, threads=1)):
        kernel = kernels.schedule(function(axes, keep, kind, dtype, after), 1 << 20, here)
        assert "T.sblock" not in kernel.script()  # written here, not scheduled
        run = compile_kernels(kernel, TARGET).jit()["main"]
        for sizes in SIZES:
            x = (10 * np.random.default_rng(0).standard_normal(sizes)).astype(dtype)
            terms = x.astype(np.float64) ** (2 if after == "squares" else 1)
            if not x.size and kind != "sum":
                continue
            with np.errstate(all="ignore"):
                wanted = getattr(np, kind)(terms, axis=axes, keepdims=keep)
                wanted = wanted / np.prod([sizes[n] for n in axes]) if after == "mean" else wanted
            result = tvm.runtime.tensor(np.full(wanted.shape, UNWRITTEN, dtype))
            run(tvm.runtime.tensor(x), result)
            # A block's terms are added in order, so that an error grows with their number and not with all.
            largest = np.nanmax(np.abs(wanted), initial=1.0)
            np.testing.assert_allclose(result.numpy(), wanted, rtol=0, atol=2e-5 * largest)


def test_nan_is_kept():
    run = compile_kernels(
        kernels.schedule(function((1, 2), False, "max", "float32", ""), 1 << 20, MACHINES["avx2"]), TARGET
    ).jit()["main"]
    x = np.full((3, 20, 30), -np.inf, np.float32)
    x[1, 19, 29] = np.nan
    result = tvm.runtime.tensor(np.zeros(3, np.float32))
    run(tvm.runtime.tensor(x), result)
    np.testing.assert_array_equal(result.numpy(), [-np.inf, np.nan, -np.inf])


def test_rows_that_are_long_at_all_sizes():
    """No size has so few elements that one thread takes them all: TVM knows it, and that branch is empty."""
    x, term = te.placeholder((4, A, 128, 256), name="x"), te.reduce_axis((0, 4), name="k")
    y = te.compute((A, 128, 256), lambda *at: te.sum(x[(term, *at)], axis=term))
    function = te.create_prim_func([x, y]).without_attr("global_symbol")
    run = compile_kernels(kernels.schedule(function, 1 << 20, MACHINES["avx2"]), TARGET).jit()["main"]
    given = np.random.default_rng(0).standard_normal((4, 2, 128, 256)).astype("float32")
    result = tvm.runtime.tensor(np.full((2, 128, 256), UNWRITTEN, "float32"))
    run(tvm.runtime.tensor(given), result)
    np.testing.assert_allclose(result.numpy(), given.sum(0), rtol=0, atol=1e-5)


def test_other_nests_are_scheduled():
    """A reduction of axes that lie apart before one that is kept, and one of a product of two tensors."""
    x, y = te.placeholder((A, B, C), name="x"), te.placeholder((A, B), name="y")
    wide = te.placeholder((A, B, C, 7), name="wide")
    first, last = te.reduce_axis((0, A), name="i"), te.reduce_axis((0, C), name="j")
    apart = te.compute((B, 7), lambda b, n: te.sum(wide[first, b, last, n], axis=[first, last]))
    product = te.compute((A, C), lambda a, c: te.sum(x[a, first, c] * y[a, first], axis=first))
    for arguments in ([wide, apart], [x, y, product]):
        assert (
            "T.sblock"
            in kernels.schedule(
                te.create_prim_func(arguments).without_attr("global_symbol"), 1 << 20, MACHINES["avx2"]
            ).script()
        )


@pytest.mark.parametrize("rows", [1, 300])
@pytest.mark.parametrize("columns", [24, 7, 3])
def test_sums_of_products_hold_neighbouring_results_in_vectors(rows, columns):
    """Those of a last axis of known extent; 3 columns fill none."""
    x, y = te.placeholder((A, B, C, columns), name="x"), te.placeholder((A, B, columns), name="y")
    term = te.reduce_axis((0, B), name="k")
    sums = te.compute((A, C, columns), lambda a, c, d: te.sum(x[a, term, c, d] * y[a, term, d], axis=term))
    function = te.create_prim_func([x, y, sums]).without_attr("global_symbol")
    scheduled = kernels.schedule(function, 1 << 20, MACHINES["avx2"])
    assert ("T.vectorized" in scheduled.script()) == (columns > 3)
    run = compile_kernels(scheduled, TARGET).jit()["main"]
    random = np.random.default_rng(0)
    for batch, places in ((1, 1), (2, 5), (3, 0)):
        left = random.standard_normal((batch, rows, places, columns)).astype("float32")
        right = random.standard_normal((batch, rows, columns)).astype("float32")
        result = tvm.runtime.tensor(np.full((batch, places, columns), UNWRITTEN, "float32"))
        run(tvm.runtime.tensor(left), tvm.runtime.tensor(right), result)
        wanted = np.einsum("abcd,abd->acd", left.astype("float64"), right)
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-5, atol=1e-5 * rows**0.5)


@pytest.mark.parametrize("axes", [(1,), (2,), (1, 2), (0, 2)])
@pytest.mark.parametrize("form", ["part", "border"])
def test_parts_and_borders(axes, form):
    """Terms that are not all of an operand: its steps from row to row are not those of the axes."""
    x = te.placeholder((A, B, C), name="x")
    if form == "part":
        part = te.compute((A, B // 2, C - C // 3), lambda *at: x[at], name="part")
    else:
        part = topi.nn.pad(x, (0, 0, 0), (0, 3, 2), 0.5)
    y = topi.sum(part, axes)
    function = te.create_prim_func([x, y]).without_attr("global_symbol")
    run = compile_kernels(kernels.schedule(function, 1 << 20, MACHINES["avx2"]), TARGET).jit()["main"]
    for sizes in SIZES[:5]:
        given = np.random.default_rng(0).standard_normal(sizes).astype("float32")
        _, rows, columns = sizes
        if form == "part":
            terms = given[:, : rows // 2, : columns - columns // 3]
        else:
            terms = np.pad(given, ((0, 0), (0, 3), (0, 2)), constant_values=0.5)
        wanted = terms.sum(axes, dtype="float64")
        result = tvm.runtime.tensor(np.full(wanted.shape, UNWRITTEN, "float32"))
        run(tvm.runtime.tensor(given), result)
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-5, atol=1e-4)


def test_a_part_of_the_results():
    x = te.placeholder((A, B, C), name="x")
    whole = topi.sum(x, 2)
    y = te.compute((A, B // 2), lambda a, b: whole[a, b] * 2.0)
    function = te.create_prim_func([x, y]).without_attr("global_symbol")
    run = compile_kernels(kernels.schedule(function, 1 << 20, MACHINES["avx2"]), TARGET).jit()["main"]
    given = np.random.default_rng(0).standard_normal((3, 7, 20)).astype("float32")
    result = tvm.runtime.tensor(np.full((3, 3), UNWRITTEN, "float32"))
    run(tvm.runtime.tensor(given), result)
    np.testing.assert_allclose(result.numpy(), 2 * given.sum(2)[:, :3], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["rows", "columns"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_sums_of_steps(dtype, order):
    """Bytes, and numbers that are rounded to bytes first, in integers."""
    x = te.placeholder((A, B), dtype, name="x")
    steps = topi.cast(topi.clip(topi.round(topi.multiply(x, 8.0)), 0.0, 255.0), "uint8")
    y = topi.sum(topi.cast(x if dtype == "uint8" else steps, "int32"), axis=order[1])
    made = te.create_prim_func([x, y]).without_attr("global_symbol")
    kernel = kernels.schedule(made, 1 << 20, MACHINES["avx2"])
    assert "T.sblock" not in kernel.script()
    run = compile_kernels(kernel, TARGET).jit()["main"]
    for shape in ((1, 1), (3, 70), (5, 20000), (20000, 3), (0, 4)):
        x = np.random.default_rng(0).uniform(0, 40, shape).astype(dtype)
        whole = x if dtype == "uint8" else np.clip(np.rint(x * 8), 0, 255)
        result = tvm.runtime.tensor(np.full(shape[order[0]], 7, "int32"))
        run(tvm.runtime.tensor(x), result)
        np.testing.assert_array_equal(result.numpy(), whole.astype("int64").sum(order[1]))
