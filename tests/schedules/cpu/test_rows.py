"""Layer norm, RMS norm and softmax of rows: chunks, odd lengths, NaN and infinities."""

import numpy as np
import pytest

from hetero_tvm.ops.add_norm import AddNorm
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.normalization import Normalize
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.rows.add_norm import AddNormSpace
from hetero_tvm.schedules.cpu.rows.normalization import NormalizeSpace
from hetero_tvm.schedules.cpu.rows.normalization_axis import NormalizeAxisSpace
from hetero_tvm.schedules.cpu.rows.softmax import SoftmaxSpace
from tests.ops.helpers import sample_inputs
from tests.schedules.cpu.running import (
    MACHINES,
    check_points,
    check_shapes,
    llvm_of,
    point_runners,
)

NORMALIZE, SOFTMAX = NormalizeSpace(), SoftmaxSpace()
NORMALIZE_AXIS, ADD_NORM = NormalizeAxisSpace(), AddNormSpace()
AVX2 = MACHINES["avx2"]
LENGTHS = (1, 3, 31, 100)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_norms_in_every_chunking(machine):
    ops = [Normalize((2, 7), n, 1e-5, centered=n % 2 == 1) for n in LENGTHS]
    ops += [Normalize((1,), 77, 1e-5, shifted=False), Normalize((), 16, 1e-3, centered=False, shifted=False)]
    check_shapes(NORMALIZE, ops, machine)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_norms_of_rows_at_strides(machine):
    # Heads of a packed projection [2, 5, 3 * 4 * 7]: the second third, heads before positions; and no lead.
    ops = [Normalize((2, 4, 5), 7, 1e-5, source=(2, 5, 84), place=(28, 420, 7, 84))]
    ops += [Normalize((), 9, 1e-5, False, False, source=(3, 10), place=(11,))]
    ops += [Normalize((6,), 17, 1e-5, source=(2, 3, 40), place=(3, 40))]
    check_shapes(NORMALIZE, ops, machine)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_norms_over_another_axis(machine):
    trails = (1, 3), (5, 7), (16, 9), (64,)  # less than a vector, odd, whole blocks and a rest, whole blocks
    ops = [Normalize((2,), 5, 1e-5, trail=trail) for trail in trails]
    ops += [Normalize((), 33, 1e-5, False, False, trail=(37,)), Normalize((3, 2), 1, 1e-5, trail=(4,))]
    check_shapes(NORMALIZE_AXIS, ops, machine)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_residual_and_norm_in_every_chunking(machine):
    ops = [AddNorm((2, 7), n, (2, 7, n), 1e-5, centered=n % 2 == 1, kept=n != 3) for n in LENGTHS]
    ops += [AddNorm((3, 5), 20, (5, 20), 1e-5), AddNorm((2, 3), 9, (9,), 1e-5, False, False, kept=False)]
    check_shapes(ADD_NORM, ops, machine)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_softmax_in_every_chunking(machine):
    check_shapes(SOFTMAX, [*(Softmax((3, 1, 5), n) for n in LENGTHS), Softmax((), 33)], machine)


def test_defaults_are_choices():
    for machine in MACHINES.values():
        for rows in (1, 2, 3, 1000):
            for n in (1, 3, 5000):
                norm, soft = Normalize((rows,), n, 1e-5), Softmax((rows,), n)
                NORMALIZE.check(norm, NORMALIZE.default(norm, machine), machine)
                SOFTMAX.check(soft, SOFTMAX.default(soft, machine), machine)


def test_refusals():
    assert NORMALIZE.refuses(Softmax((3,), 4), AVX2) == "not a normalisation"
    assert SOFTMAX.refuses(Matmul((3,), 4, 5), AVX2) == "not a softmax"
    assert NORMALIZE.refuses(Normalize((0,), 4, 1e-5), AVX2) == "an extent is zero"
    assert SOFTMAX.refuses(Softmax((3,), 0), AVX2) == "an extent is zero"
    assert "not the last" in NORMALIZE.refuses(Normalize((3,), 4, 1e-5, trail=(5,)), AVX2)
    assert "is the last" in NORMALIZE_AXIS.refuses(Normalize((3,), 4, 1e-5), AVX2)
    assert NORMALIZE_AXIS.refuses(Normalize((3,), 4, 1e-5, trail=(0,)), AVX2) == "an extent is zero"
    assert ADD_NORM.refuses(Normalize((3,), 4, 1e-5), AVX2) == "not an addition with its norm"
    assert ADD_NORM.refuses(AddNorm((0,), 4, (4,), 1e-5), AVX2) == "an extent is zero"


def test_variance_survives_a_large_mean():
    op = Normalize((4,), 200, 1e-5)
    x, *vectors = sample_inputs(op)
    check_points(NORMALIZE, op, [NORMALIZE.default(op, AVX2)], AVX2, [x + np.float32(1000), *vectors], 2e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_values_spoil_their_own_row_only(bad):
    cases = ((NORMALIZE, Normalize((5,), 37, 1e-5)), (SOFTMAX, Softmax((5,), 37)))
    for space, op in cases:
        runners = point_runners(space, op, [{"chunks": c} for c in space.knobs(op, AVX2)[0].choices], AVX2)
        arrays = sample_inputs(op)
        clean = runners[0](*arrays)
        arrays[0][1, 20] = bad
        for run in runners:
            result = run(*arrays)
            np.testing.assert_array_equal(result[[0, 2, 3, 4]], clean[[0, 2, 3, 4]])
            with np.errstate(invalid="ignore"):
                truth = op.reference(*arrays)[1]
            np.testing.assert_array_equal(np.isnan(result[1]), np.isnan(truth))


def test_softmax_of_large_and_masked_values():
    op = Softmax((6,), 21)
    (run,) = point_runners(SOFTMAX, op, [{"chunks": 1}], AVX2)
    x = np.zeros((6, 21), "float32")
    x[0] = 1e30
    x[1, 3:] = -np.inf
    x[2, 5] = 3e38
    x[3] = -np.inf  # nothing visible: uniform instead of NaN
    x[4] = np.finfo("float32").min
    x[5] = np.linspace(-200, 200, 21)
    result = run(x)
    uniform = np.full(21, 1 / 21)
    for row in (0, 3, 4):
        np.testing.assert_allclose(result[row], uniform, rtol=1e-6)
    np.testing.assert_allclose(result[1], [1 / 3] * 3 + [0] * 18, atol=1e-7)
    np.testing.assert_allclose(result[2], np.eye(21)[5], atol=1e-7)
    np.testing.assert_allclose(result[5], op.reference(x[5:].astype("float64"))[0], atol=1e-7)


@pytest.mark.parametrize("sign", [-1, 1])
def test_large_equal_scores_are_uniform(sign):
    """Also where a score times log2(e) has a rounding error that is itself large."""
    op = Softmax((240,), 5)
    (run,) = point_runners(SOFTMAX, op, [{"chunks": 1}], AVX2)
    x = np.repeat(np.geomspace(1, 1e38, 240, dtype="float32")[:, None] * sign, 5, 1)
    np.testing.assert_allclose(run(x), 0.2, rtol=1e-6)


def test_row_kernels_call_no_library_function():
    op = Softmax((4,), 50)
    ir = llvm_of(SOFTMAX.emit(op, {"chunks": 2}, AVX2))
    assert "expf" not in ir and "llvm.exp" not in ir and "TVMBackendAllocWorkspace" not in ir
