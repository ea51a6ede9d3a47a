"""Products without a contract: which functions are recognised as which product, and their numbers."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import te, tirx, tvm
from hetero_tvm.schedules.cpu.products.contraction import contraction_of, emit
from tests.schedules.cpu.running import MACHINES, TARGET
from tests.schedules.cpu.test_generic import plain
from tests.selection import named


def summed(shape, depth, term):
    """``Y[shape] = sum over depth of term(A, B, index, k)``."""

    def compute(a, b):
        axes = [te.reduce_axis((0, extent), name=f"k{n}") for n, extent in enumerate(depth)]
        return te.compute(shape, lambda *i: te.sum(term(a, b, i, axes), axis=axes), name="Y")

    return compute


PRODUCTS = {
    "ik,kj->ij": (
        summed((9, 21), (13,), lambda a, b, i, k: a[i[0], k[0]] * b[k[0], i[1]]),
        (9, 13),
        (13, 21),
    ),
    "ki,jk->ij": (
        summed((9, 21), (13,), lambda a, b, i, k: a[k[0], i[0]] * b[i[1], k[0]]),
        (13, 9),
        (21, 13),
    ),
    "bik,kbj->ibj": (
        summed((7, 3, 10), (5,), lambda a, b, i, k: a[i[1], i[0], k[0]] * b[k[0], i[1], i[2]]),
        *((3, 7, 5), (5, 3, 10)),
    ),
    "ikl,klj->ij": (
        summed((4, 11), (3, 5), lambda a, b, i, k: a[i[0], k[0], k[1]] * b[k[0], k[1], i[1]]),
        *((4, 3, 5), (3, 5, 11)),
    ),
}


@pytest.mark.parametrize("equation", named(list(PRODUCTS), {"ik,kj->ij", "bik,kbj->ibj", "ikl,klj->ij"}))
def test_products(equation):
    compute, left, right = PRODUCTS[equation]
    function = plain(compute, [left, right])
    assert contraction_of(function) is not None
    kernel = emit(function, MACHINES["avx2"]).with_attr("global_symbol", "main")
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal(shape, dtype="float32") for shape in (left, right))
    expected = np.einsum(equation, a.astype("float64"), b)
    y = tvm.runtime.tensor(np.full(expected.shape, 7, "float32"))
    library = compile_kernels(tvm.IRModule({"main": kernel}), TARGET).jit()
    library["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b), y)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5, atol=1e-5)  # sums of at most 15 terms


TERMS = {
    "squared differences": lambda a, b, c: (a - b) * (a - b),
    "absolute differences": lambda a, b, c: (np.abs if isinstance(a, np.ndarray) else tirx.abs)(a - b),
    "differences of one that is divided": lambda a, b, c: (a / c - b) * (a / c - b),
    "products": lambda a, b, c: a * b,
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(9, 21), (21, 9)])
@pytest.mark.parametrize("name", TERMS)
def test_terms_of_all_pairs_of_rows(name, shape, dtype):
    """Columns of results are rows of the second parameter, or of the first; a third is a single number."""
    term, depth = TERMS[name], 19

    def compute(a, b, c=None):
        k = te.reduce_axis((0, depth), name="k")

        def of(m, n):
            row, column = (m, n) if shape == (9, 21) else (n, m)
            return te.sum(term(a[row, k], b[column, k], c[0] if c is not None else None), axis=k)

        return te.compute(shape, of, name="Y")

    generator = np.random.default_rng(0)
    given = [generator.standard_normal(size).astype(dtype) for size in ((9, depth), (21, depth), (1,))]
    given = given if "divided" in name else given[:2]
    kernel = emit(plain(compute, [(dtype, x.shape) for x in given]), MACHINES["avx512"])
    a, b, *c = (x.astype("float64") for x in given)
    expected = term(a[:, None], b[None], *(c or [None])).sum(-1)
    expected = expected if shape == (9, 21) else expected.T
    y = tvm.runtime.tensor(np.full(expected.shape, 7, dtype))
    module = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    compile_kernels(module, TARGET).jit()["main"](*map(tvm.runtime.tensor, given), y)
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(y.numpy(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_pairs_of_one_tensor(kind):
    """Weighted differences of its rows: the weights are a vector along the reduction."""
    x, w = te.placeholder((21, 6), name="x"), te.placeholder((3, 6), name="w")
    k = te.reduce_axis((0, 6), name="k")
    combine = {"sum": te.sum, "max": te.max, "min": te.min}[kind]
    y = te.compute((21, 21), lambda i, j: combine((x[i, k] - x[j, k]) * w[1, k], axis=k), name="Y")
    kernel = emit(te.create_prim_func([x, w, y]), MACHINES["avx2"])
    generator = np.random.default_rng(0)
    rows, weights = (generator.standard_normal(shape, dtype="float32") for shape in ((21, 6), (3, 6)))
    rows[3, 2] = np.inf
    result = tvm.runtime.tensor(np.full((21, 21), 7, "float32"))
    module = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    run = compile_kernels(module, TARGET).jit()["main"]
    run(tvm.runtime.tensor(rows), tvm.runtime.tensor(weights), result)
    with np.errstate(invalid="ignore"):
        terms = (rows[:, None].astype("float64") - rows[None]) * weights[1]
        expected = getattr(np, kind)(terms, axis=-1)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-5)


OTHERS = {
    "terms of three matrices": (
        summed((4, 5), (5,), lambda a, b, i, k: a[i[0], k[0]] * b[k[0], i[1]] * a[i[1] % 4, k[0]]),
        *((4, 5), (5, 6)),
    ),
    "reduced axes in another order": (
        summed((4, 6), (3, 5), lambda a, b, i, k: a[i[0], k[0], k[1]] * b[k[1], k[0], i[1]]),
        *((4, 3, 5), (5, 3, 6)),
    ),
    "windows": (
        summed((4, 6), (3,), lambda a, b, i, k: a[i[0], i[1] + k[0]] * b[k[0], 0]),
        *((4, 8), (3, 1)),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_left_to_the_schedule(name):
    compute, left, right = OTHERS[name]
    assert contraction_of(plain(compute, [left, right])) is None


def test_a_bound_that_is_no_end_of_the_type_is_kept():
    """Beyond the numbers of float32: no term reaches the one that the expression begins with."""
    bound = -1e39
    largest = te.comm_reducer(lambda a, b: tirx.max(a, b), lambda dtype: tirx.const(bound, dtype))
    x, k = te.placeholder((9, 5), "float64", name="x"), te.reduce_axis((0, 5), name="k")
    y = te.compute((9, 9), lambda i, j: largest(x[i, k] + x[j, k], axis=k), name="Y")
    kernel = emit(te.create_prim_func([x, y]), MACHINES["avx2"])
    result = tvm.runtime.tensor(np.zeros((9, 9)))
    module = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    compile_kernels(module, TARGET).jit()["main"](tvm.runtime.tensor(np.full((9, 5), -1e40)), result)
    np.testing.assert_array_equal(result.numpy(), np.full((9, 9), bound))
