"""Plain schedules for kernels of any size, and what a point keeps."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import te, tirx, topi, tvm
from hetero_tvm.schedules.cpu.products.matmul import MatmulSpace
from hetero_tvm.schedules.cpu.symbolic import kernels
from tests.schedules.cpu.running import MACHINES, TARGET


def test_chains_of_any_size_run_in_parallel_and_in_vectors():
    n = tirx.Var("n", "int64")
    x = te.placeholder((n, 24), "float32", name="x")
    twice = te.compute((n, 24), lambda i, j: x[i, j] * 2.0, name="twice")
    y = te.compute((n, 24), lambda i, j: twice[i, j] + 1.0, name="y")
    function = te.create_prim_func([x, y]).without_attr("global_symbol")
    scheduled = kernels.schedule(function, 1 << 20, MACHINES["avx2"])
    text = scheduled.script()
    assert "T.parallel" in text and "T.vectorized" in text and "twice" not in text
    run = compile_kernels(scheduled, TARGET).jit()["main"]
    for size in (1, 5, 64):
        given = np.random.default_rng(size).standard_normal((size, 24)).astype("float32")
        result = tvm.runtime.tensor(np.zeros_like(given))
        run(tvm.runtime.tensor(given), result)
        np.testing.assert_array_equal(result.numpy(), given * 2 + 1)


def test_loops_that_cannot_be_one_stay_several():
    """A gated image in blocks, padded: TVM does not divide `b * (h + 4) * 18` by `(h + 4) * 18`."""
    b, h = tirx.Var("b", "int64"), tirx.Var("h", "int64")
    one, two, columns, lanes = (tirx.IntImm("int64", n) for n in (1, 2, 14, 16))
    x = te.placeholder((b, one, h, columns, lanes), "float32", name="x")
    gate = te.placeholder((b, one, one, one, lanes), "float32", name="gate")
    y = topi.nn.pad(topi.multiply(gate, x), [0, 0, two, two, 0], [0, 0, two, two, 0])
    function = te.create_prim_func([gate, x, y]).without_attr("global_symbol")
    scheduled = kernels.schedule(function, 1 << 20, MACHINES["avx512"])
    assert "T.parallel" in scheduled.script()
    given = np.random.default_rng(0).standard_normal((2, 1, 3, 14, 16)).astype("float32")
    result = tvm.runtime.tensor(np.zeros((2, 1, 7, 18, 16), "float32"))
    twice = tvm.runtime.tensor(np.full((2, 1, 1, 1, 16), 2, "float32"))
    compile_kernels(scheduled, TARGET).jit()["main"](twice, tvm.runtime.tensor(given), result)
    np.testing.assert_array_equal(result.numpy(), 2 * np.pad(given, ((0, 0), (0, 0), (2, 2), (2, 2), (0, 0))))


@pytest.mark.parametrize(("reducer", "begin"), [(te.sum, 0.0), (te.max, -np.inf)], ids=["sum", "max"])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_reduction_of_nothing_is_what_it_begins_with(reducer, begin, axis):
    n = tirx.Var("n", "int64")
    x = te.placeholder((n, 24) if axis == 0 else (24, n), "float32", name="x")
    term = te.reduce_axis((0, n), "term")
    at = (lambda i: x[term, i]) if axis == 0 else (lambda i: x[i, term])
    y = te.compute((24,), lambda i: reducer(at(i), axis=term), name="y")
    function = te.create_prim_func([x, y]).without_attr("global_symbol")
    run = compile_kernels(kernels.schedule(function, 1 << 20, MACHINES["avx2"]), TARGET).jit()["main"]
    for size in (0, 1, 7, 0):
        given = np.random.default_rng(size).standard_normal((size, 24) if axis == 0 else (24, size))
        given = given.astype("float32")
        result = tvm.runtime.tensor(np.full(24, 7.0, "float32"))
        run(tvm.runtime.tensor(given), result)
        wanted = given.sum(axis) if reducer is te.sum else given.max(axis, initial=begin)
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-6, atol=1e-6)  # sums of 7 floats


def test_weights_are_packed_in_whole_depths():
    point = {"tile": (6, 2), "row_blocks": 4, "unroll": 4, "prefetch": 0, "k_blocks": 3}
    assert kernels.kept_decisions(MatmulSpace(), point)["k_blocks"] == 1
