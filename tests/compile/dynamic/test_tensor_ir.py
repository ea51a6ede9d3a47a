"""TensorIR at several sizes becomes one function; what differs in more than numbers is told."""

import math

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.compile.dynamic.tensor_ir import lift_function
from hetero_tvm.host.tvm import te, tirx, tvm
from hetero_tvm.schedules.extents import Unfit
from hetero_tvm.targets.registry import parse_target

SIZES = ({"s": 40}, {"s": 31}, {"s": 23})


def shifted(s, shape=None):
    """y[i, j] = x[i, j] + table[i]."""
    x = te.placeholder(shape or (s, 4), "float32", name="x")
    table = te.placeholder((s,), "float32", name="table")
    y = te.compute(x.shape, lambda i, j: x[i, j] + table[i], name="y")
    return te.create_prim_func([table, x, y])


def test_one_function_serves_all_sizes_and_reads_the_front_of_a_constant():
    lifted = lift_function([shifted(**sizes) for sizes in SIZES], SIZES, {0: (40,)})
    run = compile_kernels(lifted, parse_target("cpu").tvm_target).jit()["main"]
    table = np.arange(40, dtype="float32")
    for size in (1, 7, 40):
        x = np.random.default_rng(size).standard_normal((size, 4)).astype("float32")
        y = tvm.runtime.tensor(np.zeros_like(x))
        run(tvm.runtime.tensor(table), tvm.runtime.tensor(x), y)
        np.testing.assert_array_equal(y.numpy(), x + table[:size, None])


@pytest.mark.parametrize(
    "number",
    [
        lambda s: float(s),
        lambda s: 1.0 / (2 * s),
        lambda s: 0.5,
        lambda s: 14 / (3 * s),
        lambda s: s / 14,
        lambda s: (3 * s + 2) / s,
        lambda s: math.sqrt(2 * s),
        lambda s: (s + 1) ** -0.5,
        lambda s: math.log(s + 1),
    ],
)
def test_floats_that_count_are_found(number):
    def scaled(s):
        x = te.placeholder((s,), "float32", name="x")
        return te.create_prim_func([x, te.compute((s,), lambda i: x[i] * tirx.const(number(s), "float32"))])

    lifted = lift_function([scaled(**sizes) for sizes in SIZES], SIZES)
    run = compile_kernels(lifted, parse_target("cpu").tvm_target).jit()["main"]
    for size in (1, 7, 40):
        x = np.arange(1, size + 1, dtype="float32")
        y = tvm.runtime.tensor(np.zeros_like(x))
        run(tvm.runtime.tensor(x), y)
        # 1 / count is rounded once more than a constant
        np.testing.assert_allclose(y.numpy(), x * np.float32(number(size)), rtol=4e-7)


def test_a_float_that_counts_nothing_is_refused():
    def scaled(s):
        x = te.placeholder((s,), "float32", name="x")
        return te.create_prim_func([x, te.compute((s,), lambda i: x[i] * tirx.const(s**-0.3, "float32"))])

    with pytest.raises(Unfit, match="counts nothing"):
        lift_function([scaled(**sizes) for sizes in SIZES], SIZES)


def test_other_loops_are_no_lifting():
    with pytest.raises(Unfit, match="loops depend on the sizes"):
        lift_function([shifted(40), shifted(31), te.create_prim_func([te.placeholder((23,))])], SIZES)


def test_a_symbol_that_no_operand_tells_is_refused():
    with pytest.raises(Unfit, match="no operand has the extent s alone"):
        lift_function([shifted(2 * s["s"] + 1, (2 * s["s"] + 1, 4)) for s in SIZES], SIZES)


def test_an_operand_that_has_a_multiple_tells_the_symbol():
    def added(s):
        x = te.placeholder((6 * s,), "float32", name="x")
        count = tirx.Cast("float32", tirx.IntImm("int32", s))
        return te.create_prim_func([x, te.compute(x.shape, lambda i: x[i] + count + tirx.const(float(s)))])

    lifted = lift_function([added(**sizes) for sizes in SIZES], SIZES)
    run = compile_kernels(lifted, parse_target("cpu").tvm_target).jit()["main"]
    for size in (1, 7, 40):
        x = np.arange(6 * size, dtype="float32")
        y = tvm.runtime.tensor(np.zeros_like(x))
        run(tvm.runtime.tensor(x), y)
        np.testing.assert_array_equal(y.numpy(), x + 2 * size)


def test_a_float_that_counts_what_no_operand_tells_is_refused():
    def scaled(s):
        x = te.placeholder((4,), "float32", name="x")
        return te.create_prim_func([x, te.compute((4,), lambda i: x[i] * tirx.const(float(s), "float32"))])

    with pytest.raises(Unfit):
        lift_function([scaled(**sizes) for sizes in SIZES], SIZES)
