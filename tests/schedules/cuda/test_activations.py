"""Activations of epilogues on a GPU."""

from hetero_tvm.ops import activations as reference
from hetero_tvm.ops.group_norm import GroupNorm
from hetero_tvm.schedules.cuda.activations import ACTIVATIONS
from hetero_tvm.schedules.cuda.rows.group_norm import CudaGroupNormSpace
from tests.schedules.cuda.spaces import check_numbers


def test_every_activation_of_the_contracts_is_there():
    assert set(ACTIVATIONS) == set(reference.ACTIVATIONS)


def test_numbers(emulated):
    ops = [GroupNorm((1, 4, 9), 2, 1e-5, name) for name in ACTIVATIONS]
    check_numbers(CudaGroupNormSpace(), [(op, None, None) for op in ops], 4e-6)
