"""Comparisons and differences of floats in kernels for GPUs are those of kernels for CPUs."""

import numpy as np
from tvm.script import from_source

from tests.codegen import test_cancellation as cpu
from tests.schedules.cuda.running import TARGET, compiled


def results(functions, arrays, shape, dtype):
    """Result of each function on the emulator."""
    with TARGET.tvm_target:
        scheduled = [TARGET.schedule_generic(function) for function in functions]
    return [call(arrays, [np.zeros(shape, dtype)])[0] for call in compiled(scheduled)]


def test_nan_is_neither_less_nor_greater(emulated):
    arrays = [values.astype("float32") for values in (cpu.FLOATS, cpu.OTHERS)]
    cases = cpu.COMPARISONS.values()
    functions = [cpu.comparison(one, other, made, "float32") for one, other, made, _ in cases]
    found = results(functions, arrays, 8, "int32")
    for (one, other, _, expected), result in zip(cases, found, strict=True):
        np.testing.assert_array_equal(result, expected(one(*arrays), other(*arrays)))


def test_nan_is_not_equal_to_itself(emulated):
    values = cpu.FLOATS.astype("float32")
    functions = [from_source(cpu.KERNEL.format(made)) for made, _ in cpu.BESIDE_ITSELF.values()]
    found = results(functions, [values], 8, "float32")
    for (_, expected), result in zip(cpu.BESIDE_ITSELF.values(), found, strict=True):
        np.testing.assert_array_equal(result, expected(values).astype("float32"))


def test_nothing_is_cancelled(emulated):
    arrays = [np.float32([np.inf, 1, 1]), np.float32([np.inf, 1e8, 2])]
    functions = [cpu.difference(compute, "float32") for compute, _ in cpu.CASES.values()]
    for (_, small), result in zip(cpu.CASES.values(), results(functions, arrays, 3, "float32"), strict=True):
        np.testing.assert_array_equal(result, np.float32([np.nan, 0, small]))
