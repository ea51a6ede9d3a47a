"""Softmax of rows of any number and length."""

import pytest

from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.rows.softmax import SoftmaxSpace
from hetero_tvm.schedules.cpu.symbolic import kernels
from tests.schedules.cpu.running import MACHINES
from tests.schedules.cpu.symbolic.helpers import check, witnesses_of


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("here", [MACHINES["avx2"], MACHINES["avx512"]], ids=["avx2", "avx512"])
@pytest.mark.parametrize("shape", [lambda b, s: (b, s), lambda b, s: (s, b, 5)], ids=["columns", "rows"])
def test_rows_of_any_length(log, here, shape):
    def make(b, s):
        *lead, n = shape(b, s)
        return Softmax(tuple(lead), n, log=log)

    space, witnesses = SoftmaxSpace(), witnesses_of(make)
    check(make, kernels.emit(witnesses, space, space.default(witnesses.largest, here), here))
