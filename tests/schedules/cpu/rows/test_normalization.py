"""Layer and RMS norm of rows: chunks, odd lengths, strides, NaN and infinities."""

import numpy as np
import pytest

from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.rows.normalization import NormalizeSpace
from tests.ops.helpers import sample_inputs
from tests.schedules.cpu.rows.helpers import LENGTHS, check_bad_values_stay_in_their_row, check_defaults
from tests.schedules.cpu.running import MACHINES, SWEPT, check_points, check_shapes, compiled, exact
from tests.selection import thorough

SPACE = NormalizeSpace()
AVX2 = MACHINES["avx2"]


@pytest.mark.parametrize("machine", SWEPT)
def test_norms_in_every_chunking(machine):
    ops = [Normalization((2, 7), n, 1e-5, centered=n % 2 == 1) for n in LENGTHS]
    ops.append(Normalization((1,), 77, 1e-5, shifted=False))
    ops.append(Normalization((), 16, 1e-3, centered=False, shifted=False))
    check_shapes(SPACE, ops, machine)


@pytest.mark.parametrize("machine", SWEPT)
def test_norms_of_rows_at_strides(machine):
    # Heads of a packed projection [2, 5, 3 * 4 * 7]: the second third, heads before positions; and no lead.
    ops = [Normalization((2, 4, 5), 7, 1e-5, source=(2, 5, 84), place=(28, 420, 7, 84))]
    ops += [Normalization((), 9, 1e-5, False, False, source=(3, 10), place=(11,))]
    ops += [Normalization((6,), 17, 1e-5, source=(2, 3, 40), place=(3, 40))]
    check_shapes(SPACE, ops, machine)


def test_variance_survives_a_large_mean():
    op = Normalization((4,), 200, 1e-5)
    x, *vectors = sample_inputs(op)
    check_points(SPACE, op, [SPACE.default(op, AVX2)], AVX2, [x + np.float32(1000), *vectors], 2e-4)


def test_a_large_mean_costs_its_rounding_alone():
    """The mean is a float32 number near 1000: half a unit of its last place is 3e-5."""
    op = Normalization((8,), 5000, 1e-5, shifted=False)
    x = (1000 + np.random.default_rng(0).standard_normal((8, 5000))).astype(np.float32)
    arrays = [x, np.ones(5000, np.float32)]
    for machine in (AVX2, MACHINES["avx512"]):
        (run,) = compiled([(SPACE.emit(op, SPACE.default(op, machine), machine), op.output.shape)])
        assert np.abs(run(*arrays) - exact(op, arrays)).max() < 4e-5


def test_defaults_are_choices():
    check_defaults(SPACE, lambda rows, n: Normalization((rows,), n, 1e-5))


def test_refusals():
    assert SPACE.refuses(Softmax((3,), 4), AVX2) == "not a normalisation"
    assert SPACE.refuses(Normalization((0,), 4, 1e-5), AVX2) == "an extent is zero"
    assert "not the last" in SPACE.refuses(Normalization((3,), 4, 1e-5, trail=(5,)), AVX2)


@pytest.mark.parametrize("bad", [np.nan, *thorough([np.inf]), -np.inf])
def test_bad_values_spoil_their_own_row_only(bad):
    check_bad_values_stay_in_their_row(SPACE, Normalization((5,), 37, 1e-5), AVX2, bad)
