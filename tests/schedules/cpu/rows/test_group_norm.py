"""The group norm kernel: every choice, tails, one value per channel, far-away means."""

import numpy as np
import pytest

from hetero_tvm.ops.group_norm import GroupNorm
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.rows.group_norm import GroupNormSpace
from tests.ops.helpers import sample_inputs
from tests.schedules.cpu.running import MACHINES, SWEPT, check_points, check_shapes, compiled, exact

SPACE = GroupNormSpace()


@pytest.mark.parametrize("machine", SWEPT)
def test_every_choice(machine):
    lanes = machine.lanes
    shapes = [
        GroupNorm((2, 6, 3, lanes + 5), 3, 1e-5),
        GroupNorm((1, 4, 8 * lanes), 4, 1e-5, "silu"),
        GroupNorm((3, 2 * lanes + 6), 2, 1e-3, "gelu_erf"),
        GroupNorm((1, 12, 7, 7), 1, 1e-5),
        GroupNorm((2, 3, 1, 1), 1, 1e-5),
    ]
    check_shapes(SPACE, shapes, machine)


def test_a_mean_far_from_zero():
    op, machine = GroupNorm((2, 4, 9, 9), 2, 1e-5), MACHINES["avx2"]
    arrays = sample_inputs(op)
    arrays[0] = arrays[0] + np.float32(300)
    check_points(SPACE, op, [SPACE.default(op, machine)], machine, arrays, tolerance=1e-4)


def test_a_large_mean_costs_its_rounding_alone():
    op, machine = GroupNorm((1, 4, 50, 50), 2, 1e-5), MACHINES["avx2"]
    x = (1000 + np.random.default_rng(0).standard_normal(op.shape)).astype(np.float32)
    arrays = [x, np.ones(4, np.float32), np.zeros(4, np.float32)]
    (run,) = compiled([(SPACE.emit(op, SPACE.default(op, machine), machine), op.output.shape)])
    assert np.abs(run(*arrays) - exact(op, arrays)).max() < 4e-5


def test_groups_of_millions_of_values():
    """Sums of blocks join in float64: each accumulator takes some hundred terms."""
    op, machine = GroupNorm((1, 2, 1500, 1001), 1, 1e-5), MACHINES["avx2"]
    x = (1 + 0.3 * np.random.default_rng(0).standard_normal(op.shape, dtype=np.float32)).astype(np.float32)
    arrays = [x, np.ones(2, np.float32), np.zeros(2, np.float32)]
    (run,) = compiled([(SPACE.emit(op, SPACE.default(op, machine), machine), op.output.shape)])
    assert np.abs(run(*arrays) - exact(op, arrays)).max() < 1.5e-6  # of values up to 5


def test_the_plain_form_computes_the_same():
    op = GroupNorm((2, 6, 3, 5), 3, 1e-5, "silu")
    arrays = sample_inputs(op)
    (run,) = compiled([(op.workload(), op.output.shape)])
    np.testing.assert_allclose(run(*arrays), exact(op, arrays), rtol=1e-5, atol=1e-5)


def test_refusals():
    machine = MACHINES["avx2"]
    assert SPACE.refuses(Softmax((3,), 4), machine) == "not a group normalisation"
    assert SPACE.refuses(GroupNorm((2, 4, 0), 2, 1e-5), machine) == "an extent is zero"
