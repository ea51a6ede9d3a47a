"""A residual and its norm: both results or one, broadcast residuals, every chunking."""

import pytest

from hetero_tvm.ops.add_norm import AddNorm
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.schedules.cpu.rows.add_norm import AddNormSpace
from tests.schedules.cpu.rows.helpers import LENGTHS
from tests.schedules.cpu.running import MACHINES, SWEPT, check_shapes

SPACE = AddNormSpace()
AVX2 = MACHINES["avx2"]


@pytest.mark.parametrize("machine", SWEPT)
def test_residual_and_norm_in_every_chunking(machine):
    ops = [AddNorm((2, 7), n, (2, 7, n), 1e-5, centered=n % 2 == 1, kept=n != 3) for n in LENGTHS]
    ops += [AddNorm((3, 5), 20, (5, 20), 1e-5), AddNorm((2, 3), 9, (9,), 1e-5, False, False, kept=False)]
    check_shapes(SPACE, ops, machine)


def test_refusals():
    assert SPACE.refuses(Normalization((3,), 4, 1e-5), AVX2) == "not an addition with its norm"
    assert SPACE.refuses(AddNorm((0,), 4, (4,), 1e-5), AVX2) == "an extent is zero"
