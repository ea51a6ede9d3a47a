"""Functions of functions: right, in every lane, compiled in seconds, and never where they may not be."""

import numpy as np
import pytest
from scipy import special

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.codegen.steps.function_steps import compute_in_steps, give_each_lane_its_steps
from hetero_tvm.host.tvm import te, tirx, tvm, tvm_ffi
from hetero_tvm.schedules.cpu import generic
from tests.schedules.cpu.running import MACHINES, TARGET
from tests.selection import thorough

FUNCTIONS = ("tirx.exp", "tirx.log", "tirx.sin", "tirx.pow", "tirx.sigmoid", "tirx.tanh")
SHAPE = (6, 64)


def constant(value):
    return tirx.const(value, "float32")


def elementwise(compute):
    """One loop nest: every element of the result by ``compute`` of the operand's."""
    x = te.placeholder(SHAPE, "float32", "x")
    return te.create_prim_func([x, te.compute(SHAPE, lambda *i: compute(x[i]), "y")])


def scheduled(compute):
    return generic.schedule(elementwise(compute), MACHINES["avx2"])


def results(function, x, dtype="float32"):
    y = tvm.runtime.tensor(np.zeros(SHAPE, dtype))
    compile_kernels(function, TARGET)["main"](tvm.runtime.tensor(x), y)
    return y.numpy()


def buffers(function):
    found = []
    tvm_ffi.structural_walk(function.body, (tirx.AllocBuffer, found.append))
    return found


def random(low=-2.0, high=2.0):
    return np.random.default_rng(3).uniform(low, high, SHAPE).astype("float32")


@pytest.mark.parametrize(
    ("compute", "truth"),
    [
        (
            lambda x: tirx.sin(tirx.power(tirx.sigmoid(x), constant(1.7))),
            lambda x: np.sin(special.expit(x) ** 1.7),
        ),
        *thorough(
            [
                (
                    lambda x: tirx.power(
                        tirx.power(tirx.power(tirx.exp(x), constant(0.7)), constant(1.3)), constant(0.9)
                    ),
                    lambda x: np.exp(x) ** (0.7 * 1.3 * 0.9),
                )
            ]
        ),
        (lambda x: x * tirx.tanh(tirx.log(1.0 + tirx.exp(x))), lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    ],
    ids=["sine of a power", "powers of powers", "mish"],
)
def test_functions_of_functions(compute, truth):
    """Three powers in each other would take TVM days."""
    x = random()
    np.testing.assert_allclose(results(scheduled(compute), x), truth(x.astype("float64")), rtol=3e-6)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_whole_numbers_of_functions_of_functions(dtype):
    """The bounds of what a polynomial binds contradicted each other."""
    function = scheduled(lambda x: tirx.Cast(dtype, tirx.Cast("int32", tirx.log(tirx.exp(x)))))
    x = random(-5, 5)
    x = np.where(np.abs(x - np.round(x)) < 1e-3, 0.5, x).astype("float32")
    np.testing.assert_array_equal(results(function, x, dtype), np.trunc(x).astype(dtype))


def test_equal_functions_are_one_step():
    function = elementwise(lambda x: tirx.sin(tirx.exp(x)) * tirx.tanh(tirx.exp(x)))
    assert len(buffers(compute_in_steps(function, FUNCTIONS))) == 3


def test_single_functions_stay():
    function = elementwise(lambda x: tirx.exp(x) + tirx.tanh(x))
    assert not buffers(compute_in_steps(function, FUNCTIONS))


def test_what_one_branch_alone_reads_stays_there():
    """The neighbour in front of the first element does not exist."""

    x = te.placeholder(SHAPE, "float32", "x")

    def element(i, j):
        return tirx.if_then_else(j > 0, tirx.log(tirx.exp(x[i, j - 1])), tirx.exp(tirx.tanh(x[i, j])))

    function = te.create_prim_func([x, te.compute(SHAPE, element)])
    assert not buffers(compute_in_steps(function, FUNCTIONS))
    numbers = random()
    expected = np.exp(np.tanh(numbers))
    expected[:, 1:] = numbers[:, :-1]
    found = results(generic.schedule(function, MACHINES["avx2"]), numbers)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_choices_among_what_is_read_anyway_are_steps():
    def chosen(x):
        return tirx.Select(x > 0, tirx.log(tirx.exp(x)), tirx.sin(tirx.exp(x)))

    assert len(buffers(compute_in_steps(elementwise(chosen), FUNCTIONS))) == 3
    x = random()
    expected = np.where(x > 0, x, np.sin(np.exp(x)))
    np.testing.assert_allclose(results(scheduled(chosen), x), expected, rtol=1e-5, atol=1e-6)


def test_each_lane_has_its_step():
    schedule = tvm.s_tir.Schedule(compute_in_steps(elementwise(lambda x: tirx.sin(tirx.exp(x))), FUNCTIONS))
    schedule.vectorize(schedule.get_loops("y")[-1])
    lowered = tvm.s_tir.transform.LowerOpaqueBlock()(
        tvm.s_tir.transform.ConvertBlocksToOpaque()(schedule.mod)
    )
    wide = buffers(give_each_lane_its_steps(lowered)["main"])
    assert [int(allocation.buffer.shape[0]) for allocation in wide] == [SHAPE[1]] * 2
