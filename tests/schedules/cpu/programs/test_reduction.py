"""Reductions of any axes: the numbers of NumPy in float64, on machines of every width."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import topi, tvm
from hetero_tvm.schedules.cpu.programs.program import emit
from tests.schedules.cpu.running import MACHINES, TARGET, compile_kernels
from tests.schedules.cpu.test_generic import array, plain
from tests.selection import thorough

SUMS = {
    "last": ((7, 37), (1,)),
    "last_short": ((300, 3), (1,)),
    "last_one_vector": ((5, 16), (1,)),
    "last_tiny": ((2, 3), (1,)),
    "first": ((19, 83), (0,)),
    "first_narrow": ((50, 5), (0,)),
    "first_of_three": ((9, 6, 16), (0,)),
    "middle": ((3, 200, 35), (1,)),
    "middle_wide": ((2, 300, 200), (1,)),
    "far_rows": ((2, 300, 603), (1,)),  # long strips, the last one short
    "far_rows_in_strips": ((45, 2101), (0,)),
    "few_far_rows": ((9, 1, 520), (0,)),
    "outer_two": ((5, 4, 33), (0, 1)),
    "inner_two": ((3, 4, 7, 7), (2, 3)),
    "around": ((5, 40, 33), (0, 2)),
    "around_middle": ((3, 6, 5, 9), (1, 3)),
    "all": ((13, 17), (0, 1)),
    "all_large": ((300, 701), (0, 1)),
    "few_rows": ((2, 50001), (1,)),
    "few_columns": ((40001, 3), (0,)),
    "few_strips": ((5000, 24), (0,)),
    "blocks_and_a_rest": ((9001,), (0,)),
    "many_rows": ((700, 32), (1,)),
    "axes_of_one": ((1, 9, 1, 20), (1, 2)),
    "two_kept": ((70, 8, 9, 30), (0, 2)),
}
OPERATIONS = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


def run_all(functions, arrays, machine):
    kernels = {}
    for name, function in functions.items():
        kernel = emit(function, machine)
        assert kernel is not None, name
        kernels[name] = kernel.with_attr("global_symbol", name)
    library = compile_kernels(tvm.IRModule(kernels), TARGET).jit()
    results = {}
    for name, kernel in kernels.items():
        out = kernel.params[-1]
        result = tvm.runtime.tensor(np.full([int(e) for e in out.shape], 7, str(out.dtype)))
        library[name](*(tvm.runtime.tensor(a) for a in arrays[name]), result)
        results[name] = result.numpy()
    return results


@pytest.mark.thorough
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_sums_over_any_axes(machine):
    functions = {n: plain(lambda x, a=a: topi.sum(x, a), [shape]) for n, (shape, a) in SUMS.items()}
    generator = np.random.default_rng(1)
    arrays = {n: [array(shape, "float32", generator)] for n, (shape, _) in SUMS.items()}
    for name, result in run_all(functions, arrays, machine).items():
        truth = np.sum(arrays[name][0].astype("float64"), SUMS[name][1])
        scale = np.sum(np.abs(arrays[name][0]).astype("float64"), SUMS[name][1])
        assert result.shape == truth.shape
        assert (np.abs(result - truth) <= 3e-7 * scale).all(), name


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_and_types(operation, dtype):
    shapes = {"last": ((6, 45), 1), "first": ((45, 21), 0), "all": ((90, 95), None), "long": ((3, 9001), 1)}
    functions = {
        n: plain(lambda x, a=a: getattr(topi, operation)(x, a), [(dtype, shape)])
        for n, (shape, a) in shapes.items()
    }
    generator = np.random.default_rng(2)
    arrays = {}
    for name, (shape, _) in shapes.items():
        values = array(shape, dtype, generator)
        if operation == "prod":
            values = np.where(values % 2 < 1, 1, -1).astype(dtype)
        arrays[name] = [values]
    for name, result in run_all(functions, arrays, MACHINES["avx2"]).items():
        truth = OPERATIONS[operation](arrays[name][0].astype("float64"), shapes[name][1])
        np.testing.assert_allclose(result, truth, rtol=2e-5, atol=2e-4 if "32" in dtype else 1e-10)


def test_a_sum_of_millions_is_as_exact_as_numpys():
    values = np.random.default_rng(3).random((1500, 1500), "float32")
    machine = MACHINES["avx2"]
    cases = {"all": (0, 1), "rows": 0, "columns": 1}
    functions = {n: plain(lambda x, a=a: topi.sum(x, a), [values.shape]) for n, a in cases.items()}
    for name, result in run_all(functions, dict.fromkeys(functions, [values]), machine).items():
        truth = values.astype("float64").sum(cases[name])
        numpys = np.abs(values.sum(cases[name]) / truth - 1).max()
        assert np.abs(result / truth - 1).max() <= max(2 * numpys, 3e-7), name


def test_infinities_and_masked_rows():
    values = np.random.default_rng(4).standard_normal((9, 70)).astype("float32")
    values[2, 5], values[3, 69], values[4] = np.inf, -np.inf, -np.inf
    functions = {"sum": plain(lambda x: topi.sum(x, 1), [values.shape])}
    functions["max"] = plain(lambda x: topi.max(x, 1), [values.shape])
    functions["min"] = plain(lambda x: topi.min(x, 0), [values.shape])
    results = run_all(functions, dict.fromkeys(functions, [values]), MACHINES["avx512"])
    np.testing.assert_allclose(results["sum"], values.sum(1, dtype="float64"), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(results["max"], values.max(1))
    np.testing.assert_array_equal(results["min"], values.min(0))


@pytest.mark.thorough
def test_what_is_fused_around_a_reduction():
    shape = (12, 345)
    functions = {
        "mean": plain(lambda x: topi.divide(topi.sum(x, 1), 345.0), [shape]),
        "l2": plain(lambda x: topi.sqrt(topi.sum(topi.multiply(x, x), 1, keepdims=True)), [shape]),
        "centred": plain(lambda x: topi.subtract(x, topi.sum(x, 1, keepdims=True) / 345.0), [shape]),
        "log_softmax": plain(lambda x: topi.nn.log_softmax(x), [shape]),
        "softmax_first": plain(lambda x: topi.nn.softmax(x, 0), [shape]),
        "distance": plain(lambda x, y: topi.sum(topi.abs(topi.subtract(x, y)), 1), [shape, (345,)]),
    }
    generator = np.random.default_rng(5)
    x, y = array(shape, "float32", generator), array((345,), "float32", generator)
    arrays = {name: [x, y] if name == "distance" else [x] for name in functions}
    d, e = x.astype("float64"), np.exp(x.astype("float64"))
    truth = {
        "mean": d.mean(1),
        "l2": np.sqrt((d * d).sum(1, keepdims=True)),
        "centred": d - d.mean(1, keepdims=True),
        "log_softmax": d - np.log(e.sum(1, keepdims=True)),
        "softmax_first": e / e.sum(0),
        "distance": np.abs(d - y).sum(1),
    }
    for machine in MACHINES.values():
        for name, result in run_all(functions, arrays, machine).items():
            np.testing.assert_allclose(result, truth[name], rtol=2e-6, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("shape", [(4, 5, 2), *thorough([((7, 20, 3),), ((1, 100, 2),)]), (3, 33, 2)])
def test_a_sum_of_a_sum_over_strips_of_which_the_last_is_narrow(shape):
    """Memory between two loops over the same strips, as a variance of short rows has it."""

    def variance(x):
        mean = topi.sum(x, 2, keepdims=True) / float(shape[2])
        centred = topi.subtract(x, mean)
        return topi.sum(topi.multiply(centred, centred), 2, keepdims=True)

    x = array(shape, "float32", np.random.default_rng(6))
    for machine in MACHINES.values():
        (result,) = run_all({"sum": plain(variance, [shape])}, {"sum": [x]}, machine).values()
        truth = shape[2] * x.astype("float64").var(axis=2, keepdims=True)
        np.testing.assert_allclose(result, truth, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    "compute, shapes",
    [
        (lambda x, y: topi.matmul(x, y), [(13, 19), (19, 24)]),
        (lambda x: topi.argmax(x, -1), [(9, 33)]),
        (lambda x: topi.exp(x), [(9, 33)]),
        (lambda x: topi.sum(x, 0), [(0, 33)]),
    ],
)  # fmt: skip
def test_other_kernels_are_left_to_the_schedule(compute, shapes):
    assert emit(plain(compute, shapes), MACHINES["avx2"]) is None
