"""Positions of extrema of rows: the first of equal ones, NaN, infinities, rows of every length."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.schedules.cpu.rows.arg_extremum import emit_arg_extremum
from tests.schedules.cpu.running import SWEPT, TARGET
from tests.selection import thorough


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
@pytest.mark.parametrize("behind", [1, 14, *thorough([7 * 13])])
def test_positions(machine, behind):
    """Along the last axis of 14 rows, and along the middle one of two maps of which one is reversed."""
    lengths = (1, 7, 128, 256, 300, 1031) if behind == 1 else (1, 7, 33)
    cases = [(length, largest, False) for length in lengths for largest in (True, False)]
    cases += [(length, length % 2 == 1, True) for length in lengths[1::2]]
    functions, arrays = {}, {}
    for n, (length, largest, ranges) in enumerate(cases):
        x = rows(length)
        if behind == 1:
            x = x.reshape(14, length, 1)
        else:
            columns = np.resize(x.T, (length, behind)) if behind == 14 else np.tile(x.T, (1, 7))[:, :behind]
            x = np.stack([columns, columns[:, ::-1]])
        arrays[n] = np.ascontiguousarray(x)
        function = emit_arg_extremum(machine, x.shape, largest, "int64" if n % 3 else "int32", ranges)
        functions[f"f{n}"] = function.with_attr("global_symbol", f"f{n}")
    library = compile_kernels(tvm.IRModule(functions), TARGET).jit()
    for n, (length, largest, ranges) in enumerate(cases):
        x = arrays[n]
        y = tvm.runtime.tensor(np.full(x.shape[::2], -7, "int64" if n % 3 else "int32"))
        library[f"f{n}"](tvm.runtime.tensor(x), y)
        wanted = (np.argmax if largest else np.argmin)(x, 1)
        np.testing.assert_array_equal(y.numpy(), wanted, err_msg=f"{length} {largest} {ranges}")
