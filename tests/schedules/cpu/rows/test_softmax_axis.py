"""Softmax over an inner axis: every chunking, blocks and what they leave, masked and huge values."""

import numpy as np
import pytest

from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.rows.softmax_axis import SoftmaxAxisSpace
from hetero_tvm.schedules.cpu.symbolic import kernels
from tests.schedules.cpu.running import MACHINES, SWEPT, check_shapes, point_runners
from tests.schedules.cpu.symbolic.helpers import check, witnesses_of
from tests.selection import thorough

SPACE = SoftmaxAxisSpace()
AVX2 = MACHINES["avx2"]


@pytest.mark.parametrize("log", [False, *thorough([True])])
@pytest.mark.parametrize("machine", SWEPT)
def test_every_chunking(machine, log):
    block = 4 * machine.lanes
    trails = [(4,), (7,), (block - 1,), (block,), (3, block + 5), (2, 2, 2 * block)]
    check_shapes(SPACE, [Softmax((2, 3), 5, log=log, trail=trail) for trail in trails], machine)
    check_shapes(SPACE, [Softmax((), n, log=log, trail=(19,)) for n in (1, 33)], machine)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "shape",
    [lambda b, s: ((b,), 5, (s,)), lambda b, s: ((), s, (b, 9)), lambda b, s: ((s,), b, (7, 5))],
    ids=["neighbours", "the axis", "images"],
)
@pytest.mark.parametrize("here", [MACHINES["avx2"], MACHINES["avx512"]], ids=["avx2", "avx512"])
def test_any_size(log, shape, here):
    def make(b, s):
        lead, n, trail = shape(b, s)
        return Softmax(lead, n, log=log, trail=trail)

    witnesses = witnesses_of(make)
    check(make, kernels.emit(witnesses, SPACE, SPACE.default(witnesses.largest, here), here))


def test_large_masked_and_undefined_values():
    op = Softmax((), 6, trail=(37,))
    (run,) = point_runners(SPACE, op, [{"chunks": 1}], AVX2)
    x = np.zeros((6, 37), "float32")
    x[:, 0], x[2:, 1], x[3, 2], x[:, 3], x[4, 36] = 1e30, -np.inf, 3e38, -np.inf, np.nan
    result = run(x)
    np.testing.assert_allclose(result[:, 0], 1 / 6, rtol=1e-6)
    np.testing.assert_allclose(result[:, 1], [0.5, 0.5, 0, 0, 0, 0], atol=1e-7)
    np.testing.assert_allclose(result[:, 2], np.eye(6)[3], atol=1e-7)
    assert np.isnan(result[:, [3, 36]]).all()  # nothing visible, and what is no number
    np.testing.assert_allclose(result[:, 4:36], 1 / 6, rtol=1e-6)


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (Matmul((4,), 3, 2), "not a softmax"),
        (Softmax((4,), 3), "the axis is the last"),
        (Softmax((4,), 3, trail=(0, 5)), "an extent is zero"),
        (Softmax((4,), 3, trail=(3,)), "few neighbours"),
        (Softmax((4,), 3, "float16", trail=(8,)), "the operand is float16"),
    ],
)
def test_refusals(op, reason):
    assert SPACE.refuses(op, AVX2) == reason
