import dataclasses

import numpy as np

from hetero_tvm.ops.batch_matmul import BatchMatmul
from tests.ops.helpers import check, run_workload

# A [2, 4, 3, 6] is read as [2, 3, 4, 6], B [2, 3, 5, 6] transposed; the result is [2, 4, 3, 5].
TURNED = BatchMatmul(
    (2, 3), 4, 5, 6, (2, 4, 3, 6), (0, 72, 6, 18, 1), (2, 3, 5, 6), (0, 90, 30, 1, 6), (0, 2, 1, 3)
)


def test_operands_are_read_where_they_lie():
    check(TURNED, lambda a, b: np.einsum("bmhk,bhnk->bmhn", a, b))


def test_plain_operands_of_size_one():
    op = BatchMatmul((1,), 1, 1, 1, (1, 1, 1), (0, 1, 1, 1), (1, 1, 1), (0, 1, 1, 1), (0, 1, 2))
    check(op, lambda a, b: a * b)


def test_one_matrix_for_all_products_and_an_offset():
    """B lies behind two rows of another matrix, and has no batch of its own."""
    op = BatchMatmul((3,), 2, 4, 5, (3, 2, 5), (0, 10, 5, 1), (7, 4), (8, 0, 4, 1), (0, 1, 2))
    check(op, lambda a, b: a @ b[2:])


def test_half_precision_and_integers():
    check(
        dataclasses.replace(TURNED, dtype="float16"),
        lambda a, b: np.einsum("bmhk,bhnk->bmhn", a, b),
        tolerance=5e-4,
    )
    op = dataclasses.replace(TURNED, dtype="int8")
    assert op.output.dtype == "int32"
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-128, 128, x.shape).astype(np.int8) for x in op.inputs)
    wanted = np.einsum("bmhk,bhnk->bmhn", a.astype(np.int64), b.astype(np.int64))
    assert np.array_equal(op.reference(a, b), wanted)
    assert np.array_equal(run_workload(op, [a, b])[0], wanted)


def test_cost():
    assert TURNED.flops == 2 * 6 * 4 * 5 * 6
    assert TURNED.nbytes == 4 * (2 * 4 * 3 * 6 + 2 * 3 * 5 * 6 + 2 * 4 * 3 * 5)
