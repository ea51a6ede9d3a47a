"""Products with few rows: the orders that a product has, their estimates, defaults of real shapes."""

import pytest

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.schedules.cpu.products import few_rows
from hetero_tvm.schedules.cpu.products.batch_matmul import PANELS, BatchMatmulSpace
from hetero_tvm.schedules.cpu.products.few_rows import INNER, STRIPS
from tests.schedules.cpu.running import MACHINES

SPACE = BatchMatmulSpace()
AVX2 = MACHINES["avx2"]
ZEN5 = CpuModel("znver5", lanes=16, registers=32, l2=1 << 20)


def product(m, n, k, left_turned=False, right_turned=False):
    """One product of compact matrices, each as it is or transposed."""
    a = (0, 1, m) if left_turned else (0, k, 1)
    b = (0, 1, k) if right_turned else (0, n, 1)
    return BatchMatmul((), m, n, k, (m * k,), a, (k * n,), b, (0, 1))


@pytest.mark.parametrize(
    "op, expected",
    [
        (product(1, 1024, 2048), (STRIPS,)),
        (product(8, 1024, 2048), (STRIPS,)),
        (product(9, 1024, 2048), ()),
        (product(1, 1024, 2048, right_turned=True), (INNER,)),
        (product(5, 1024, 2048, right_turned=True), ()),
        (product(1024, 1, 2048), (INNER,)),
        (product(1024, 1, 2048, left_turned=True), ()),
        (product(1024, 4, 2048, right_turned=True), (INNER,)),
        (product(64, 64, 64, right_turned=True), ()),
        (product(1, 64, 1, left_turned=True), (STRIPS, INNER)),
    ],
)
def test_orders(op, expected):
    assert few_rows.orders(op) == expected


def test_large_operands_are_read_as_they_lie():
    def order(op):
        return SPACE.default(op, AVX2)["order"]

    assert order(product(1, 1024, 2048)) == STRIPS
    assert order(product(1, 1024, 2048, right_turned=True)) == INNER
    assert order(product(1024, 1, 2048)) == INNER
    assert order(product(2, 48, 64)) == PANELS, "the accumulators of a small one stay in registers"
    assert order(product(128, 512, 512)) == PANELS


def test_items_of_a_batch_are_large_together():
    """Each item of 1 MB would stay in L2, all of them do not."""

    def order(batch, turned):
        at = (0, 4096 * 64, *((1, 64) if turned else (4096, 1)))
        op = BatchMatmul((batch,), 1, 4096, 64, (batch, 64), (0, 64, 0, 1), (batch, 4096 * 64), at, (0, 1, 2))
        return SPACE.default(op, ZEN5)["order"]

    assert order(16, turned=False) == STRIPS
    assert order(16, turned=True) == INNER


def test_points_of_an_order_are_one_kernel():
    op = product(2, 40, 9)
    points = [{"tile": (1, 1), "unroll": u, "order": STRIPS} for u in (2, 8)]
    assert len({str(SPACE.canonical(op, point, AVX2)) for point in points}) == 1
    old = {"tile": (1, 1), "unroll": 8}
    assert SPACE.canonical(op, old, AVX2) == {**old, "order": PANELS}
