"""Layer and RMS norms on the emulated GPU."""

from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.schedules.cuda.rows.normalization import CudaNormalizationSpace
from tests.schedules.cuda.rows.cases import check_both, half
from tests.schedules.cuda.spaces import (
    HALF,
    check_numbers,
    random_arrays,
)

NORM = CudaNormalizationSpace()


def test_norms(emulated):
    ops = [
        Normalization((3,), 1, 1e-5),
        Normalization((2, 5), 7, 1e-5),
        Normalization((9,), 64, 1e-6, False, False),
        Normalization((1,), 1000, 1e-5, True, False),
        Normalization((33,), 36, 1e-5, False, True),
    ]
    check_both(NORM, [(op, None) for op in ops])


def test_norm_of_a_large_mean(emulated):
    op = Normalization((4,), 260, 1e-5)
    arrays = random_arrays(op)
    arrays[0] += 1000  # one pass with sums of squares would lose all digits
    check_numbers(NORM, [(op, None, arrays)], 1e-3)


def test_norm_of_rows_that_lie_at_strides(emulated):
    heads = Normalization((2, 3, 4), 8, 1e-5, source=(2, 3, 60), place=(4, 180, 60, 12))
    odd = Normalization((2, 3), 7, 1e-5, False, False, source=(2, 3, 9), place=(1, 27, 9))
    check_numbers(NORM, [(op, None, None) for op in (heads, odd, half(heads))], HALF)
