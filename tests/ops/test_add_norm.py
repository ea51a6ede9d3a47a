import numpy as np
import pytest

from hetero_tvm.ops.add_norm import AddNorm
from tests.ops.helpers import check
from tests.ops.test_normalization import formula


@pytest.mark.parametrize("added", [(2, 3, 9), (3, 9), (9,)])
@pytest.mark.parametrize("kept", [True, False])
def test_sum_and_norm_of_the_sum(added, kept):
    def add_then_norm(x, r, scale, shift):
        total = x + r
        y = formula(1e-3)(total, scale, shift)
        return (total, y) if kept else y

    check(AddNorm((2, 3), 9, added, 1e-3, kept=kept), add_then_norm)


def test_rms_norm_of_one_value():
    op = AddNorm((1,), 1, (1, 1), 1e-3, centered=False, shifted=False, kept=False)
    check(op, lambda x, r, scale: (x + r) / np.sqrt((x + r) ** 2 + 1e-3) * scale)


def test_rows_of_the_residual_repeat():
    assert AddNorm((2, 3), 9, (3, 9), 1e-5).added_rows == 3
    assert AddNorm((2, 3), 9, (9,), 1e-5).added_rows == 1


def test_cost_and_label():
    op = AddNorm((2, 3), 9, (3, 9), 1e-5)
    assert op.nbytes == 4 * (54 + 27 + 18 + 2 * 54)
    assert op.flops == op.norm.flops + 54
    assert op.label == "add_layer_norm_6x9"
    assert AddNorm((2, 3), 9, (3, 9), 1e-5, kept=False).label == "add_layer_norm_6x9_alone"
