"""Terms of all pairs of rows, the sizes known at run time: how operands lie, which terms, every tail."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import te, tirx, tvm
from hetero_tvm.schedules.cpu.symbolic import kernels
from tests.schedules.cpu.running import MACHINES, TARGET, UNWRITTEN

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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize(("places", "swapped"), [*((p, False) for p in PLACES), ("rows", True)])
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
