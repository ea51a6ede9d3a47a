"""Differences of floats: computed as written, NaN and rounding included."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import te, tvm
from hetero_tvm.schedules.cpu import generic
from tests.schedules.cpu.running import MACHINES, TARGET

CASES = {
    "(x + y) - y": (lambda total, x, y: total - y, 1),
    "y - (x + y)": (lambda total, x, y: y - total, -1),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("compute, small", CASES.values(), ids=CASES)
def test_nothing_is_cancelled(compute, small, dtype):
    """TVM takes such a difference for one of its operands once the sum is inlined."""
    x, y = (te.placeholder((3,), dtype, name) for name in "xy")
    total = te.compute((3,), lambda i: x[i] + y[i], "total")
    result = te.compute((3,), lambda i: compute(total[i], x[i], y[i]), "result")
    function = generic.schedule(te.create_prim_func([x, y, result]), MACHINES["avx2"])
    run = compile_kernels(function, TARGET).jit()["main"]
    large = 1e8 if dtype == "float32" else 1e18  # 1 disappears beside it
    arrays = [np.array(values, dtype) for values in ([np.inf, 1.0, 1.0], [np.inf, large, 2.0], [0.0] * 3)]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    run(*tensors)
    np.testing.assert_array_equal(tensors[2].numpy(), np.array([np.nan, 0.0, small], dtype))
