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


def runners(cases, machine):
    """Callables ``x -> (values, positions)``, compiled together."""
    module = {}
    for n, (shape, axis, k, largest) in enumerate(cases):
        function = emit_topk(shape, axis, k, largest, [(VALUES, "float32"), (INDICES, "int64")], machine)
        module[f"f{n}"] = function.with_attr("global_symbol", f"f{n}")
    library = compile_kernels(tvm.IRModule(module), TARGET).jit()

    def runner(n, shape, axis, k):
        out = [*shape]
        out[axis] = k

        def run(x):
            arrays = [tvm.runtime.tensor(np.full(out, 7, dtype)) for dtype in ("float32", "int64")]
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
