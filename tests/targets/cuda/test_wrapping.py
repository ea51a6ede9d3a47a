"""Integers of kernels for GPUs wrap around as those of kernels for CPUs do."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import te, tirx
from tests.codegen.test_wrapping import CASES, CHAINS, COUNT, applied, kernel, numbers
from tests.schedules.cuda.running import TARGET, compiled
from tests.selection import named

DTYPES = ["int32", "int64", "uint32"]


def cases(dtype):
    """(kernel, expected) by name, and the operands of all."""
    x, y = numbers(dtype)
    constant = np.dtype(dtype).type
    made = {}
    for name, (first, then, expected) in CASES.items():
        made[name] = kernel(first, then, dtype), expected(x, y, constant)
    value = np.iinfo(dtype).max // 2 + 3
    for name, steps in CHAINS.items():
        inputs = [te.placeholder((COUNT,), dtype, name) for name in "xy"]
        stage, expected = inputs[0], x
        for step in steps:
            stage = applied(step, stage, tirx.const(value, dtype))
            expected = step(expected, constant(value))
        made[name] = te.create_prim_func([*inputs, stage]), expected
    return made, (x, y)


@pytest.mark.parametrize("dtype", named(DTYPES, {"int64"}))
def test_integers_wrap_around(emulated, dtype):
    """Products of constants were multiplied out: (x * 7) / 7 was x, and others did not compile."""
    with np.errstate(over="ignore"):
        made, operands = cases(dtype)
    with TARGET.tvm_target:
        functions = [TARGET.schedule_generic(function) for function, _ in made.values()]
    for (name, (_, expected)), call in zip(made.items(), compiled(functions), strict=True):
        (result,) = call(operands, [np.zeros(COUNT, dtype)])
        np.testing.assert_array_equal(result, expected, err_msg=name)
