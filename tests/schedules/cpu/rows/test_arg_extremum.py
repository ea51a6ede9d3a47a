"""Positions of extrema of rows: the first of equal ones, NaN, infinities, rows of every length."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.schedules.cpu.rows.arg_extremum import emit_arg_extremum
from tests.schedules.cpu.running import SWEPT, TARGET


def rows(length):
    """Rows with ties, NaN of both signs, infinities, zeros of both signs, and random numbers."""
    x = np.random.default_rng(length).standard_normal((14, length)).astype("float32")
    middle, last = length // 2, length - 1
    x[1] = 0
    x[2, [middle, last]] = 9, 9
    x[3, [middle, last]] = np.nan, np.nan
    x[4, last] = np.nan
    x[5, 0], x[5, last] = np.nan, np.inf
    x[6] = np.inf
    x[7] = -np.inf
    x[8] = np.copysign(np.nan, -1)
    x[9, ::2], x[9, 1::2] = -0.0, 0.0
    x[10, last], x[11, middle] = -50, 50
    x[12] = -np.inf
    x[12, middle:] = np.nan
    x[13] = np.arange(length)
    return x


@pytest.mark.parametrize("machine", SWEPT)
def test_positions(machine):
    cases = [(length, largest) for length in (1, 7, 128, 256, 300, 1031) for largest in (True, False)]
    functions = {}
    for n, (length, largest) in enumerate(cases):
        function = emit_arg_extremum(machine, (2, 7, length), largest, "int64" if n % 3 else "int32")
        functions[f"f{n}"] = function.with_attr("global_symbol", f"f{n}")
    library = compile_kernels(tvm.IRModule(functions), TARGET).jit()
    for n, (length, largest) in enumerate(cases):
        x = rows(length)
        y = tvm.runtime.tensor(np.full((14,), -7, "int64" if n % 3 else "int32"))
        library[f"f{n}"](tvm.runtime.tensor(x.reshape(2, 7, length)), y)
        wanted = (np.argmax if largest else np.argmin)(x, 1)
        np.testing.assert_array_equal(y.numpy(), wanted, err_msg=f"{length} {largest}")
