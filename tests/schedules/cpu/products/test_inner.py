"""Inner products: a vector with a transposed matrix, a matrix with a vector, odd extents, few rows."""

import pytest

from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.schedules.cpu.products.batch_matmul import BatchMatmulSpace
from hetero_tvm.schedules.cpu.products.few_rows import INNER
from hetero_tvm.schedules.cpu.products.inner import Roles, block_of, roles_of, rows_at_once
from tests.schedules.cpu.running import MACHINES, SWEPT, check_points

SPACE = BatchMatmulSpace()
POINT = {"tile": (1, 1), "unroll": 4, "order": INNER}


def rows_of(batch, m, n, k, order=(0, 1, 2)):
    """A [batch, m, k] with B [batch, n, k], transposed."""
    return BatchMatmul(
        (batch,), m, n, k, (batch * m * k,), (0, m * k, k, 1), (batch * n * k,), (0, n * k, 1, k), order
    )


@pytest.mark.parametrize("machine", SWEPT)
def test_the_numbers(machine):
    for op in (
        rows_of(1, 1, 1, 1),
        rows_of(2, 1, 41, 37),
        rows_of(1, 3, 10, 50, (1, 0, 2)),
        rows_of(2, 29, 1, 19, (1, 0, 2)),
        rows_of(1, 13, 4, 16),
    ):
        check_points(SPACE, op, [POINT], machine)


def test_roles():
    assert roles_of(rows_of(1, 1, 9, 5)) == Roles(True, 1, 9)
    assert roles_of(rows_of(1, 9, 2, 5)) == Roles(False, 2, 9)
    assert roles_of(rows_of(1, 9, 9, 5)) is None


def test_blocks_are_whole_steps_for_all_threads():
    machine, op = MACHINES["avx2"], rows_of(1, 1, 1000, 64)
    roles = roles_of(op)
    block = block_of(op, roles, machine)
    assert block % rows_at_once(roles) == 0 and -(-1000 // block) >= machine.threads
