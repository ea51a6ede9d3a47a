"""Group norms on the emulated GPU."""

from hetero_tvm.schedules.cuda.rows.group_norm import CudaGroupNormSpace
from tests.schedules.cuda.rows.cases import GROUPS, check_both

GROUP = CudaGroupNormSpace()


def test_group_norms(emulated):
    check_both(GROUP, [(op, None) for op in GROUPS])
