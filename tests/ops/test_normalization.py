import numpy as np
import pytest
import torch
from torch.nn import functional

from hetero_tvm.ops.normalization import Normalization
from tests.ops.helpers import check, sample_inputs


def formula(eps, centered=True):
    """PyTorch's norm over the last axis."""

    def norm(x, scale, shift=None):
        n = (x.shape[-1],)
        x, scale = torch.from_numpy(x), torch.from_numpy(scale)
        if centered:
            shift = None if shift is None else torch.from_numpy(shift)
            return functional.layer_norm(x, n, scale, shift, eps).numpy()
        return functional.rms_norm(x, n, scale, eps).numpy()

    return norm


@pytest.mark.parametrize("lead, n", [((1,), 2), ((2, 3), 9), ((4,), 1)])
def test_layer_norm(lead, n):
    check(Normalization(lead, n, 1e-3), formula(1e-3))
    check(Normalization(lead, n, 1e-3, shifted=False), formula(1e-3))


@pytest.mark.parametrize("lead, n", [((4,), 9), ((2, 3), 1)])
def test_rms_norm(lead, n):
    check(Normalization(lead, n, 1e-3, centered=False, shifted=False), formula(1e-3, centered=False))


def test_an_axis_that_is_not_the_last():
    def channels(x, scale, shift):
        return np.moveaxis(formula(1e-5)(np.ascontiguousarray(np.moveaxis(x, 1, -1)), scale, shift), -1, 1)

    op = Normalization((2,), 5, 1e-5, trail=(3, 4))
    assert op.rows == 24 and "not the last" in op.special
    check(op, channels)


def test_rows_at_strides_of_their_own():
    """Heads of the middle third of a packed projection [2, 3, 60]."""
    op = Normalization((2, 4, 3), 5, 1e-5, False, False, source=(2, 3, 60), place=(20, 180, 5, 60))

    def heads(x, scale):
        x_BSHD = x[..., 20:40].reshape(2, 3, 4, 5)
        return formula(1e-5, False)(np.ascontiguousarray(x_BSHD.transpose(0, 2, 1, 3)), scale)

    check(op, heads)
    assert op.nbytes == 4 * (2 * 120 + 5) and "strides" in op.special and op.label.endswith("_strided")


def test_constant_rows_and_nan():
    op = Normalization((3,), 8, 1e-5)
    x, scale, shift = sample_inputs(op)
    x[0], x[1, 2] = 3, np.nan  # eighths of 3 add up exactly
    check(op, formula(1e-5), [x, scale, shift])
    np.testing.assert_array_equal(op.reference(x, scale, shift)[0], shift)


def test_half_precision():
    check(Normalization((3,), 8, 1e-3, dtype="float16"), formula(1e-3), tolerance=5e-4)


def test_cost_and_label():
    op = Normalization((2, 3), 9, 1e-5)
    assert op.nbytes == 4 * (2 * 54 + 18) and op.flops > 0 and op.special is None
    assert op.label == "layer_norm_6x9"
    assert Normalization((4,), 9, 1e-5, centered=False).label == "rms_norm_4x9"
