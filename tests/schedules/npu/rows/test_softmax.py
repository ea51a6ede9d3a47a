import numpy as np
import pytest

from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.npu.rows.softmax import NpuSoftmaxSpace
from tests.schedules.npu.running import assert_close, machine


@pytest.mark.parametrize("op", [Softmax((3, 7), 100), Softmax((40,), 1)], ids=lambda op: op.label)
def test_softmax_keeps_its_contract(op):
    assert_close(NpuSoftmaxSpace(), op, machine())


def test_the_sum_of_a_long_row_may_pass_float16s_range():
    assert_close(NpuSoftmaxSpace(), Softmax((1,), 80000), machine("datacenter"), [np.zeros((1, 80000), "f4")])


def test_a_row_that_does_not_fit_is_refused():
    reason = NpuSoftmaxSpace().refuses(Softmax((1,), 1 << 20), machine())
    assert reason is not None and "does not fit the unified buffer of edge" in reason
