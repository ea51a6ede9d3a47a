"""Softmax on the emulated GPU."""

import numpy as np

from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cuda.rows.softmax import CudaSoftmaxSpace
from tests.schedules.cuda.rows.cases import SINGLE, check_both
from tests.schedules.cuda.running import MACHINE
from tests.schedules.cuda.spaces import (
    check_numbers,
    random_arrays,
)

SOFTMAX = CudaSoftmaxSpace()


def test_softmax(emulated):
    ops = [Softmax(lead, n) for lead, n in (((3,), 1), ((2, 5), 7), ((9,), 64), ((1,), 1000), ((33,), 36))]
    check_both(SOFTMAX, [(op, None) for op in ops])


def test_values_at_the_edges(emulated):
    op = Softmax((6,), 36)
    (x,) = random_arrays(op)
    x[0, 3], x[1], x[2, 5], x[3, ::2] = np.nan, -np.inf, np.inf, -np.inf
    x[4] = np.finfo("float32").min
    x[5] *= 1e30
    check_numbers(SOFTMAX, [(op, None, [x])], SINGLE)


def test_refusals():
    assert "zero" in SOFTMAX.refuses(Softmax((0,), 4), MACHINE)
    assert "softmax" in SOFTMAX.refuses(Normalization((1,), 4, 1e-5), MACHINE)
