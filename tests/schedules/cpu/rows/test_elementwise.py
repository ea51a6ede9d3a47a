"""An activation alone: every function, every choice, tails, and values at the ends of the range."""

import numpy as np
import pytest

from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.ops.elementwise import Elementwise
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.rows.elementwise import ElementwiseSpace
from tests.ops.helpers import sample_inputs
from tests.schedules.cpu.running import (
    MACHINES,
    SWEPT,
    check_points,
    check_shapes,
    compiled,
    exact,
    point_runners,
)
from tests.selection import named

SPACE = ElementwiseSpace()


@pytest.mark.parametrize("machine", SWEPT)
def test_every_choice_and_every_tail(machine):
    step = 4 * machine.lanes
    shapes = [(1,), (step - 1,), (step,), (3, step + 5), (2, 2, 2 * step), (7, 5, step - 3)]
    check_shapes(SPACE, [Elementwise(shape, "silu") for shape in shapes], machine)


@pytest.mark.parametrize(
    "function", named(list(ACTIVATIONS), {"relu", "relu6", "gelu_erf", "gelu_tanh", "silu", "hard_swish"})
)
def test_every_function(function):
    for machine in MACHINES.values():
        op = Elementwise((5, 33), function)
        check_points(SPACE, op, [SPACE.default(op, machine)], machine)


def test_the_plain_forms_compute_the_same():
    ops = [Elementwise((5, 7), function) for function in ACTIVATIONS]
    for op, run in zip(ops, compiled((op.workload(), op.output.shape) for op in ops), strict=True):
        arrays = sample_inputs(op)
        np.testing.assert_allclose(run(*arrays), exact(op, arrays), rtol=0, atol=2e-6, err_msg=op.function)


@pytest.mark.parametrize("function", ACTIVATIONS)
def test_special_values(function):
    op = Elementwise((6,), function)
    machine = MACHINES["avx2"]
    (run,) = point_runners(SPACE, op, [SPACE.default(op, machine)], machine)
    found = run(np.array([np.nan, -1e30, -100.0, 0.0, 100.0, 1e30], "float32"))
    assert np.isnan(found[0]) and np.isfinite(found[1:]).all()
    if function == "leaky_relu_0p1":
        np.testing.assert_allclose(found[1:], [-1e29, -10, 0, 100, 1e30], rtol=1e-6)
    elif function not in ("sigmoid", "tanh"):
        assert found[3] == 0 and np.abs(found[1:3]).max() == 0
        assert found[4] == (6 if function == "relu6" else 100)


def test_refusals():
    assert SPACE.refuses(Softmax((3,), 4), MACHINES["avx2"]) == "not an activation alone"
    assert SPACE.refuses(Elementwise((0, 3), "silu"), MACHINES["avx2"]) == "an extent is zero"
