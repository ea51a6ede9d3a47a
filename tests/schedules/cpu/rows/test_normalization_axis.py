"""Norms over an axis that is not the last: fewer neighbours than a vector, odd counts, whole blocks."""

import numpy as np
import pytest

from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.schedules.cpu.rows.normalization_axis import NormalizeAxisSpace
from tests.schedules.cpu.running import MACHINES, SWEPT, check_shapes, compiled, exact

SPACE = NormalizeAxisSpace()
AVX2 = MACHINES["avx2"]


@pytest.mark.thorough
@pytest.mark.parametrize("machine", SWEPT)
def test_norms_over_another_axis(machine):
    trails = (1, 3), (5, 7), (16, 9), (64,)  # less than a vector, odd, whole blocks and a rest, whole blocks
    ops = [Normalization((2,), 5, 1e-5, trail=trail) for trail in trails]
    ops.append(Normalization((), 33, 1e-5, False, False, trail=(37,)))
    ops.append(Normalization((3, 2), 1, 1e-5, trail=(4,)))
    check_shapes(SPACE, ops, machine)


def test_a_large_mean_costs_its_rounding_alone():
    op = Normalization((1,), 5000, 1e-5, shifted=False, trail=(37,))
    x = (1000 + np.random.default_rng(0).standard_normal((1, 5000, 37))).astype(np.float32)
    arrays = [x, np.ones(5000, np.float32)]
    (run,) = compiled([(SPACE.emit(op, SPACE.default(op, AVX2), AVX2), op.output.shape)])
    assert np.abs(run(*arrays) - exact(op, arrays)).max() < 5e-5


def test_refusals():
    assert "is the last" in SPACE.refuses(Normalization((3,), 4, 1e-5), AVX2)
    assert SPACE.refuses(Normalization((3,), 4, 1e-5, trail=(0,)), AVX2) == "an extent is zero"
