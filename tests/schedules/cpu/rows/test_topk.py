"""The greatest and least values of rows: order, ties, NaN, any axis, few and many."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.schedules.cpu.rows.topk import INDICES, VALUES, emit_topk
from tests.schedules.cpu.running import SWEPT, TARGET

CASES = [
    # shape, axis, k, largest
    ((3, 1000), 1, 5, True),
    ((3, 1000), 1, 5, False),
    ((2, 3000), 1, 1, True),
    ((1, 5000), 1, 300, True),
    ((2, 700), 1, 700, False),
    ((2, 65, 3), 1, 4, True),
    ((2, 300, 3), 1, 300, True),
    ((400, 2), 0, 9, False),
    ((5, 1), 1, 1, True),
    ((2, 64), 1, 64, True),
    ((1, 129), 1, 2, True),
    ((3, 7), 1, 2, True),
    ((4, 37), 1, 5, False),
    ((2, 81, 2), 1, 2, True),
    ((2, 9), 1, 9, True),
]


def runners(cases, machine, kind="float32"):
    """Callables ``x -> (values, positions)``, compiled together."""
    module = {}
    for n, (shape, axis, k, largest) in enumerate(cases):
        results = [(VALUES, kind), (INDICES, "int64")]
        function = emit_topk(shape, axis, k, largest, results, machine, dtype=kind)
        module[f"f{n}"] = function.with_attr("global_symbol", f"f{n}")
    library = compile_kernels(tvm.IRModule(module), TARGET).jit()

    def runner(n, shape, axis, k):
        out = [*shape]
        out[axis] = k

        def run(x):
            arrays = [tvm.runtime.tensor(np.full(out, 7, dtype)) for dtype in (kind, "int64")]
            library[f"f{n}"](tvm.runtime.tensor(x), *arrays)
            return [array.numpy() for array in arrays]

        return run

    return [runner(n, shape, axis, k) for n, (shape, axis, k, _) in enumerate(cases)]


def expected(x, axis, k, largest):
    """Positions by a stable sort in which NaN is greater than all numbers."""
    keys = np.where(np.isnan(x), 0.0, x.astype("float64"))
    keys[np.isposinf(x)], keys[np.isneginf(x)] = 1e300, -1e300
    keys[np.isnan(x)] = np.inf
    order = np.argsort(-keys if largest else keys, axis=axis, kind="stable")
    return np.take(order, np.arange(k), axis)


@pytest.mark.thorough
@pytest.mark.parametrize("machine", SWEPT)
def test_values_and_positions(machine):
    for (shape, axis, k, largest), run in zip(CASES, runners(CASES, machine), strict=True):
        random = np.random.default_rng(k)
        rising = np.arange(np.prod(shape), dtype="float32").reshape(shape)
        few = np.round(random.standard_normal(shape), 1).astype("float32")
        few.flat[:: max(1, few.size // 5)] = np.nan
        few.flat[1 :: max(1, few.size // 7)] = -np.inf
        few.flat[2 :: max(1, few.size // 9)] = -0.0
        for x in (random.standard_normal(shape).astype("float32"), few, rising, np.zeros(shape, "float32")):
            values, positions = run(x)
            wanted = expected(x, axis, k, largest)
            np.testing.assert_array_equal(positions, wanted)
            np.testing.assert_array_equal(values, np.take_along_axis(x, wanted, axis))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ("float16", "int8", "uint8", "int16", "uint16", "int32"))
@pytest.mark.parametrize("machine", SWEPT)
def test_other_types(dtype, machine):
    """Numbers with ties, the ends of a type among them, and rows of nothing but its least."""
    generator = np.random.default_rng(5)
    for (shape, axis, k, largest), run in zip(CASES, runners(CASES, machine, dtype), strict=True):
        if dtype == "float16":
            ends, x = [np.nan, np.inf, -np.inf], generator.standard_normal(shape).astype(dtype)
        else:
            ends = [np.iinfo(dtype).min, np.iinfo(dtype).max]
            x = generator.integers(*ends, shape, dtype=dtype, endpoint=True)
        x[generator.random(shape) < 0.3] = ends[-1]
        x[generator.random(shape) < 0.3] = ends[0]
        for values in (x, np.full(shape, ends[0], dtype), np.full(shape, ends[-1], dtype)):
            found, places = run(values)
            wanted = expected(values, axis, k, largest)
            np.testing.assert_array_equal(places, wanted, err_msg=f"{shape} {axis} {k} {largest}")
            np.testing.assert_array_equal(found, np.take_along_axis(values, wanted, axis))
