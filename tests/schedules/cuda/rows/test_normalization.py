"""Layer and RMS norms on the emulated GPU."""

from hetero_tvm.ops.normalization import Normalize
from hetero_tvm.schedules.cuda.rows.normalization import CudaNormalizeSpace
from tests.schedules.cuda.rows.cases import check_both, half
from tests.schedules.cuda.spaces import (
    HALF,
    check_numbers,
    random_arrays,
)

NORM = CudaNormalizeSpace()


def test_norms(emulated):
    ops = [
        Normalize((3,), 1, 1e-5), Normalize((2, 5), 7, 1e-5), Normalize((9,), 64, 1e-6, False, False),
        Normalize((1,), 1000, 1e-5, True, False), Normalize((33,), 36, 1e-5, False, True),
    ]  # fmt: skip
    check_both(NORM, [(op, None) for op in ops])


def test_norm_of_a_large_mean(emulated):
    op = Normalize((4,), 260, 1e-5)
    arrays = random_arrays(op)
    arrays[0] += 1000  # one pass with sums of squares would lose all digits
    check_numbers(NORM, [(op, None, arrays)], 1e-3)


def test_norm_of_rows_that_lie_at_strides(emulated):
    heads = Normalize((2, 3, 4), 8, 1e-5, source=(2, 3, 60), place=(4, 180, 60, 12))
    odd = Normalize((2, 3), 7, 1e-5, False, False, source=(2, 3, 9), place=(1, 27, 9))
    check_numbers(NORM, [(op, None, None) for op in (heads, odd, half(heads))], HALF)
