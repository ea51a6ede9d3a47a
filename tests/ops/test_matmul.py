import numpy as np
import pytest
from scipy import special

from hetero_tvm.ops.matmul import Matmul
from tests.ops.helpers import check, sample_inputs


def product(x, w):
    return np.einsum("...k,kn->...n", x, w)


@pytest.mark.parametrize("lead, n, k", [((1,), 1, 1), ((2, 3), 5, 4), ((7,), 1, 9), ((), 3, 2)])
def test_plain(lead, n, k):
    check(Matmul(lead, n, k), product)


def test_steps_of_the_epilogue_come_in_order():
    check(
        Matmul((2, 3), 5, 4, ("bias", "gelu_erf", "residual")),
        lambda x, w, bias, residual: (y := product(x, w) + bias) * special.ndtr(y) + residual,
    )
    check(
        Matmul((3,), 4, 5, ("residual", "bias", "gate", "relu")),
        lambda x, w, residual, bias, gate: np.maximum((product(x, w) + residual + bias) * gate, 0),
    )


def test_half_precision():
    """float16 operands, arithmetic in float32, a bias in float32: one rounding at the end."""
    op = Matmul((4,), 6, 8, ("bias", "silu"), "float16")
    assert [x.dtype for x in op.inputs] == ["float16", "float16", "float32"]
    check(op, lambda x, w, bias: (y := product(x, w) + bias) * special.expit(y), tolerance=5e-4)


def test_nan_and_infinity_stay_in_their_row():
    op = Matmul((4,), 3, 5)
    x, w = sample_inputs(op)
    x[1, 2], x[2, 0] = np.nan, np.inf
    check(op, product, [x, w])
    with np.errstate(invalid="ignore"):
        assert np.isfinite(op.reference(x, w)[[0, 3]]).all()


def test_cost_and_label():
    op = Matmul((2, 3), 5, 7, ("bias", "relu"))
    assert op.flops == 2 * 6 * 5 * 7 and op.m == 6
    assert op.nbytes == 4 * (6 * 7 + 7 * 5 + 5 + 6 * 5)
    assert op.label == "matmul_6x7x5_bias_relu"
    assert [x.constant for x in op.inputs] == [False, True, True]
