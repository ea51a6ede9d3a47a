import numpy as np
import pytest
import torch
from scipy import special
from torch.nn import functional

from hetero_tvm.ops.group_norm import GroupNorm
from tests.ops.helpers import check


def formula(groups, eps):
    def norm(x, scale, shift):
        x, scale, shift = map(torch.from_numpy, (x, scale, shift))
        return functional.group_norm(x, groups, scale, shift, eps).numpy()

    return norm


@pytest.mark.parametrize(
    "shape, groups", [((2, 6, 3, 5), 3), ((1, 4, 7), 1), ((2, 3, 2, 2), 3), ((1, 1, 2), 1)]
)
def test_groups_and_instances(shape, groups):
    check(GroupNorm(shape, groups, 1e-3), formula(groups, 1e-3))


def test_activation():
    def silu(*arrays):
        y = formula(2, 1e-3)(*arrays)
        return y * special.expit(y)

    check(GroupNorm((2, 4, 3, 3), 2, 1e-3, "silu"), silu)


def test_half_precision():
    check(GroupNorm((1, 4, 3, 3), 2, 1e-3, dtype="float16"), formula(2, 1e-3), tolerance=5e-4)


def test_constant_groups_give_the_shift():
    op = GroupNorm((1, 2, 4), 2, 1e-5)
    result = op.reference(np.ones((1, 2, 4)), np.ones(2), np.array([3.0, -1.0]))
    assert result[0, :, 0].tolist() == [3, -1]


def test_cost_and_label():
    op = GroupNorm((2, 6, 3, 5), 3, 1e-5, "silu")
    assert (op.rows, op.n, op.channels, op.spatial) == (6, 30, 6, 15)
    assert op.nbytes == 4 * (2 * 180 + 2 * 6) and op.flops > 0
    assert op.label == "group_norm_2x6x3x5_g3_silu"
    assert GroupNorm((2, 6, 3, 5), 6, 1e-5).label.startswith("instance_norm")
