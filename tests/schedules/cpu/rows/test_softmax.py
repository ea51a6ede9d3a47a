"""Softmax of rows: every chunking, odd lengths, masked and huge values, NaN and infinities."""

import numpy as np
import pytest

from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.rows.softmax import SoftmaxSpace
from tests.schedules.cpu.rows.helpers import LENGTHS, check_bad_values_stay_in_their_row, check_defaults
from tests.schedules.cpu.running import MACHINES, SWEPT, check_shapes, llvm_of, point_runners
from tests.selection import thorough

SPACE = SoftmaxSpace()
AVX2 = MACHINES["avx2"]


@pytest.mark.parametrize("machine", SWEPT)
def test_softmax_in_every_chunking(machine):
    check_shapes(SPACE, [*(Softmax((3, 1, 5), n) for n in LENGTHS), Softmax((), 33)], machine)
    check_shapes(SPACE, [Softmax((5,), n, log=True) for n in (1, 21, 70)], machine)


def test_softmax_of_large_and_masked_values():
    op = Softmax((6,), 21)
    (run,) = point_runners(SPACE, op, [{"chunks": 1}], AVX2)
    x = np.zeros((6, 21), "float32")
    x[0] = 1e30
    x[1, 3:] = -np.inf
    x[2, 5] = 3e38
    x[3] = -np.inf  # nothing visible: NaN, as the contract and ONNX Runtime have it
    x[4] = np.finfo("float32").min
    x[5] = np.linspace(-200, 200, 21)
    result = run(x)
    uniform = np.full(21, 1 / 21)
    assert np.isnan(result[3]).all()
    for row in (0, 4):
        np.testing.assert_allclose(result[row], uniform, rtol=1e-6)
    np.testing.assert_allclose(result[1], [1 / 3] * 3 + [0] * 18, atol=1e-7)
    np.testing.assert_allclose(result[2], np.eye(21)[5], atol=1e-7)
    np.testing.assert_allclose(result[5], op.reference(x[5:].astype("float64"))[0], atol=1e-7)


def test_logarithms_of_large_and_masked_values():
    op = Softmax((5,), 21, log=True)
    (run,) = point_runners(SPACE, op, [{"chunks": 1}], AVX2)
    x = np.zeros((5, 21), "float32")
    x[0], x[1, 3:], x[2, 5], x[3, 7] = 1e30, -np.inf, 3e38, np.nan
    x[4] = np.linspace(-200, 200, 21)
    result = run(x)
    np.testing.assert_allclose(result[0], -np.log(21), rtol=1e-6)
    np.testing.assert_allclose(result[1], [-np.log(3)] * 3 + [-np.inf] * 18, rtol=1e-6)
    np.testing.assert_allclose(result[2], np.where(np.arange(21) == 5, 0, -3e38), rtol=1e-6)
    assert np.isnan(result[3]).all()
    np.testing.assert_allclose(result[4], op.reference(x[4:].astype("float64"))[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sign", [-1, 1])
def test_large_equal_scores_are_uniform(sign):
    """Also where a score times log2(e) has a rounding error that is itself large."""
    op = Softmax((240,), 5)
    (run,) = point_runners(SPACE, op, [{"chunks": 1}], AVX2)
    x = np.repeat(np.geomspace(1, 1e38, 240, dtype="float32")[:, None] * sign, 5, 1)
    np.testing.assert_allclose(run(x), 0.2, rtol=1e-6)


def test_it_calls_no_library_function():
    op = Softmax((4,), 50)
    ir = llvm_of(SPACE.emit(op, {"chunks": 2}, AVX2))
    assert "expf" not in ir and "llvm.exp" not in ir and "TVMBackendAllocWorkspace" not in ir


def test_defaults_are_choices():
    check_defaults(SPACE, lambda rows, n: Softmax((rows,), n))


def test_refusals():
    assert SPACE.refuses(Matmul((3,), 4, 5), AVX2) == "not a softmax"
    assert SPACE.refuses(Softmax((3,), 0), AVX2) == "an extent is zero"


@pytest.mark.parametrize("bad", [np.nan, *thorough([np.inf]), -np.inf])
def test_bad_values_spoil_their_own_row_only(bad):
    check_bad_values_stay_in_their_row(SPACE, Softmax((5,), 37), AVX2, bad)
