import numpy as np
import pytest

from hetero_tvm.ops.normalization import Normalize
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.npu.rows.normalization import NpuNormalizationSpace
from hetero_tvm.schedules.npu.rows.softmax import NpuSoftmaxSpace
from tests.schedules.npu.running import assert_close, machine


@pytest.mark.parametrize(
    "op",
    [
        Normalize((3, 7), 100, 1e-5),
        Normalize((1,), 768, 1e-12, shifted=False),
        Normalize((33,), 17, 1e-5, centered=False, shifted=False),
        Normalize((5,), 1, 1e-5),
    ],
    ids=lambda op: op.label,
)
def test_normalize_keeps_its_contract_with_any_rows(op):
    space, mach = NpuNormalizationSpace(), machine()
    for rows in space.knobs(op, mach)[0].choices[:4]:
        assert_close(space, op, mach, point={"rows": rows})


def test_statistics_are_float32():
    """Values around 100 with a spread of 1: a float16 sum of squares would be lost."""
    rng = np.random.default_rng(0)
    op = Normalize((8,), 512, 1e-5)
    x = (100 + rng.standard_normal((8, 512))).astype(np.float16).astype(np.float32)
    assert_close(NpuNormalizationSpace(), op, machine(), [x, np.ones(512, "f4"), np.zeros(512, "f4")])


@pytest.mark.parametrize("op", [Softmax((3, 7), 100), Softmax((40,), 1)], ids=lambda op: op.label)
def test_softmax_keeps_its_contract(op):
    assert_close(NpuSoftmaxSpace(), op, machine())


def test_the_sum_of_a_long_row_may_pass_float16s_range():
    assert_close(NpuSoftmaxSpace(), Softmax((1,), 80000), machine("datacenter"), [np.zeros((1, 80000), "f4")])


def test_a_row_that_does_not_fit_is_refused():
    reason = NpuSoftmaxSpace().refuses(Softmax((1,), 1 << 20), machine())
    assert reason is not None and "does not fit the unified buffer of edge" in reason
