"""Products of few rows by strips of a matrix: odd extents, batches, transposed rows, edge values."""

import pytest

from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.schedules.cpu.products.batch_matmul import BatchMatmulSpace
from hetero_tvm.schedules.cpu.products.few_rows import STRIPS
from hetero_tvm.schedules.cpu.products.streamed import strip_of
from tests.schedules.cpu.running import MACHINES, SWEPT, check_points

SPACE = BatchMatmulSpace()
POINT = {"tile": (1, 1), "unroll": 4, "order": STRIPS}


def rows_of(batch, m, n, k):
    return BatchMatmul((batch,), m, n, k, (batch * m * k,), (0, m * k, k, 1), (k, n), (0, 0, n, 1), (1, 0, 2))


@pytest.mark.parametrize("machine", SWEPT)
def test_the_numbers(machine):
    turned = BatchMatmul((), 3, 37, 5, (5, 3), (0, 1, 3), (200,), (7, 38, 1), (0, 1))
    for op in (rows_of(1, 1, 2, 1), rows_of(1, 8, 45, 19), rows_of(3, 2, 33, 40), turned):
        check_points(SPACE, op, [POINT], machine)


def test_several_strips():
    machine = MACHINES["avx2"]
    op = rows_of(1, 8, 1000, 3)
    assert 1 < strip_of(op, machine) < op.n and op.n % strip_of(op, machine)
    check_points(SPACE, op, [POINT], machine)


def test_strips_are_for_all_threads():
    machine = MACHINES["avx2"]
    strips = -(-1024 // strip_of(rows_of(1, 1, 1024, 8), machine))
    assert strips >= machine.threads
    assert strip_of(rows_of(64, 1, 1024, 8), machine) == 1024
