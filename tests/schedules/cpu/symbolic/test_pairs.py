"""Terms of all pairs of rows, the sizes known at run time: how operands lie, which terms, every tail."""

import itertools

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import te, tirx, topi, tvm
from hetero_tvm.schedules.cpu.symbolic import kernels
from tests.schedules.cpu.running import MACHINES, TARGET, UNWRITTEN
from tests.selection import thorough

B, M, N, K = (tirx.Var(name, "int64") for name in "bmnk")
SIZES = (
    {"b": 1, "m": 1, "n": 1, "k": 1},
    {"b": 2, "m": 3, "n": 5, "k": 7},
    {"b": 3, "m": 37, "n": 67, "k": 30},
    {"b": 2, "m": 100, "n": 21, "k": 16},
    {"b": 1, "m": 5, "n": 300, "k": 1},
    {"b": 2, "m": 4, "n": 0, "k": 5},
)


def absolute(x):
    return np.abs(x) if isinstance(x, np.ndarray) else tirx.abs(x)


TERMS = {
    "squared differences": ("sum", lambda a, b, w: (a - b) * (a - b)),
    "largest difference": ("max", lambda a, b, w: absolute(a - b)),
    "weighted differences": ("sum", lambda a, b, w: (a / w - b / w) * (a / w - b / w)),
    "products": ("sum", lambda a, b, w: a * b),
}
PLACES = {"rows": ("mk", "nk"), "columns": ("mk", "kn"), "a batch": ("bmk", "bnk"), "turned": ("kbm", "bkn")}


def function(places, name, swapped, dtype):
    kind, term = TERMS[name]
    left, right = PLACES[places]
    extents = {"b": B, "m": M, "n": N, "k": K}
    order = ("b" if "b" in left else "") + ("nm" if swapped else "mn")
    a, b = (te.placeholder([extents[axis] for axis in side], dtype, name="x") for side in (left, right))
    w = te.placeholder((K,), dtype, name="w")
    along = te.reduce_axis((0, K), name="along")

    def of(*given):
        at = dict(zip(order, given, strict=True)) | {"k": along}
        values = (a[tuple(at[axis] for axis in left)], b[tuple(at[axis] for axis in right)], w[along])
        return {"sum": te.sum, "max": te.max}[kind](term(*values), axis=along)

    y = te.compute([extents[axis] for axis in order], of, name="y")
    given = [a, b, w] if "weighted" in name else [a, b]
    return te.create_prim_func([*given, y]).without_attr("global_symbol"), order


def cases():
    """All combinations; by default each term, each place and each type once or twice."""
    by_default = {
        *(("rows", False, name, "float32") for name in TERMS),
        ("columns", False, "squared differences", "float64"),
        ("a batch", False, "weighted differences", "float64"),
        ("turned", False, "squared differences", "float64"),
        ("rows", True, "squared differences", "float64"),
    }
    ways = [*((places, False) for places in PLACES), ("rows", True)]
    for (places, swapped), name, dtype in itertools.product(ways, TERMS, ("float32", "float64")):
        case = places, swapped, name, dtype
        yield pytest.param(*case, marks=() if case in by_default else pytest.mark.thorough)


@pytest.mark.parametrize(("places", "swapped", "name", "dtype"), [*cases()])
def test_values(places, swapped, name, dtype):
    left, right = PLACES[places]
    kind, term = TERMS[name]
    machine = MACHINES["avx512" if dtype == "float32" else "avx2"]
    made, order = function(places, name, swapped, dtype)
    kernel = kernels.schedule(made, 1 << 20, machine)
    assert "T.sblock" not in kernel.script()  # written here, not scheduled
    run = compile_kernels(kernel, TARGET).jit()["main"]
    generator = np.random.default_rng(0)
    for sizes in SIZES:
        a, b = (generator.standard_normal([sizes[n] for n in side]).astype(dtype) for side in (left, right))
        w = generator.uniform(1, 2, sizes["k"]).astype(dtype)
        lead = "b" if "b" in left else ""
        wide = [
            np.einsum(f"{side}->{lead}{side_of}k", x.astype("float64"))
            for x, side, side_of in ((a, left, "m"), (b, right, "n"))
        ]
        wanted = getattr(np, kind)(term(wide[0][..., :, None, :], wide[1][..., None, :, :], w), axis=-1)
        wanted = np.swapaxes(wanted, -1, -2) if swapped else wanted
        given = [a, b, w] if "weighted" in name else [a, b]
        result = tvm.runtime.tensor(np.full([sizes[n] for n in order], UNWRITTEN, dtype))
        run(*map(tvm.runtime.tensor, given), result)
        tolerance = 1e-5 if dtype == "float32" else 1e-13
        np.testing.assert_allclose(result.numpy(), wanted, rtol=tolerance, atol=30 * tolerance)


def test_infinities_and_nan_are_kept():
    made, _ = function("rows", "largest difference", False, "float32")
    run = compile_kernels(kernels.schedule(made, 1 << 20, MACHINES["avx512"]), TARGET).jit()["main"]
    a = np.array([[1, 2], [np.inf, 0], [np.nan, 0]], np.float32)
    b = np.zeros((20, 2), np.float32)
    result = tvm.runtime.tensor(np.zeros((3, 20), np.float32))
    run(tvm.runtime.tensor(a), tvm.runtime.tensor(b), result)
    np.testing.assert_array_equal(result.numpy(), np.repeat([[2], [np.inf], [np.nan]], 20, 1))


def test_terms_of_three_matrices_are_scheduled():
    a, b, c = (te.placeholder((M, K), name=name) for name in "abc")
    k = te.reduce_axis((0, K), name="k")
    y = te.compute((M, M), lambda i, j: te.sum(a[i, k] * b[j, k] * c[j, k], axis=k), name="y")
    kernel = kernels.schedule(
        te.create_prim_func([a, b, c, y]).without_attr("global_symbol"), 1 << 20, MACHINES["avx2"]
    )
    assert "T.sblock" in kernel.script()


@pytest.mark.parametrize("weighted", [*thorough([False]), True])
def test_results_go_through_what_follows(weighted):
    a, b = (te.placeholder((extent, K), "float32", name="x") for extent in (M, N))
    w, along = te.placeholder((K,), "float32", name="w"), te.reduce_axis((0, K), name="along")

    def term(m, n):
        product = a[m, along] * b[n, along]
        return te.sum(product * w[along] if weighted else product, axis=along)

    y = te.compute((M, N), term, name="y")
    steps = topi.cast(topi.clip(topi.round(topi.multiply(y, 0.25)), -128.0, 127.0), "int8")
    made = te.create_prim_func([a, b, *[w][: int(weighted)], steps]).without_attr("global_symbol")
    kernel = kernels.schedule(made, 1 << 20, MACHINES["avx512"])
    assert "T.sblock" not in kernel.script()
    run = compile_kernels(kernel, TARGET).jit()["main"]
    generator = np.random.default_rng(0)
    for rows, columns, depth in ((1, 1, 1), (7, 40, 511), (13, 33, 1300), (2, 3, 0)):
        shapes = ((rows, depth), (columns, depth))
        given = [generator.integers(-9, 9, shape).astype("float32") for shape in shapes]
        weights = generator.integers(1, 4, depth).astype("float32")
        given += [weights] if weighted else []
        result = tvm.runtime.tensor(np.full((rows, columns), 99, "int8"))
        run(*map(tvm.runtime.tensor, given), result)
        products = (given[0] * weights if weighted else given[0]) @ given[1].T
        np.testing.assert_array_equal(result.numpy(), np.clip(np.rint(products * 0.25), -128, 127))


@pytest.mark.thorough
def test_long_sums_are_as_exact_as_short_ones():
    a, b = (te.placeholder((extent, K), "float32", name="x") for extent in (M, N))
    along = te.reduce_axis((0, K), name="along")
    y = te.compute((M, N), lambda m, n: te.sum(a[m, along] * b[n, along], axis=along), name="y")
    made = te.create_prim_func([a, b, y]).without_attr("global_symbol")
    run = compile_kernels(kernels.schedule(made, 1 << 20, MACHINES["avx2"]), TARGET).jit()["main"]
    a, b = np.random.default_rng(0).uniform(0, 1, (2, 4, 1 << 20)).astype("float32")
    result = tvm.runtime.tensor(np.zeros((4, 4), "float32"))
    run(tvm.runtime.tensor(a), tvm.runtime.tensor(b), result)
    # One accumulator of a million terms is 1.4e-4 off.
    np.testing.assert_allclose(result.numpy(), a.astype("float64") @ b.T.astype("float64"), rtol=3e-6)
