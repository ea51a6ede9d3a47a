import numpy as np
import pytest
from scipy import special

from hetero_tvm.ops.base import from_json
from hetero_tvm.ops.softmax import Softmax
from tests.ops.helpers import check, sample_inputs


def formula(x):
    return special.softmax(x, -1)


@pytest.mark.parametrize("lead, n", [((1,), 1), ((2, 3), 7), ((), 5)])
def test_rows_sum_to_one(lead, n):
    check(Softmax(lead, n), formula)


def test_hidden_places_large_and_undefined_values():
    op = Softmax((4,), 5)
    (x,) = sample_inputs(op)
    x[0, 3:], x[1], x[2, 0] = -np.inf, x[1] * 1e30, np.nan
    check(op, formula, [x])
    assert (op.reference(x)[0, 3:] == 0).all() and np.isnan(op.reference(x)[2]).all()


def test_the_logarithm():
    op = Softmax((4,), 5, log=True)
    (x,) = sample_inputs(op)
    x[0, 3:], x[1], x[2, 0] = -np.inf, x[1] * 1e30, np.nan
    check(op, lambda x: special.log_softmax(x, -1), [x])
    assert op.label == "log_softmax_4x5" and from_json(op.to_json()) == op


def test_half_precision_and_cost():
    op = Softmax((3,), 8, "float16")
    check(op, formula, tolerance=5e-4)
    assert op.nbytes == 2 * 2 * 24 and op.label == "softmax_3x8_float16"


@pytest.mark.parametrize("log", [False, True])
def test_an_inner_axis(log):
    op = Softmax((2,), 3, log=log, trail=(4, 5))
    check(op, lambda x: (special.log_softmax if log else special.softmax)(x, 1))
    assert op.rows == 40 and op.shape == (2, 3, 4, 5) and from_json(op.to_json()) == op
    assert op.label == ("log_softmax" if log else "softmax") + "_2x3x20"
