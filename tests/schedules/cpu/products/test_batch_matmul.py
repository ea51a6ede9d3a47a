"""Products of two computed tensors: tiles, strides, orders of the result, odd extents."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.cpu.products.batch_matmul import PANELS, ROWS, BatchMatmulSpace
from tests.ops.helpers import sample_inputs
from tests.schedules.cpu.running import MACHINES, MOST_ROWS, SWEPT, check_shapes, point_runners
from tests.selection import thorough

SPACE = BatchMatmulSpace()


def plain(lead, m, n, k, order=None, dtype="float32"):
    """Row-major operands."""
    batch = int(np.prod(lead))
    steps = [int(np.prod(lead[i + 1 :])) for i in range(len(lead))]
    left, right = (tuple(step * size for step in steps) for size in (m * k, k * n))
    operands = (batch * m * k,), (0, *left, k, 1), (batch * k * n,), (0, *right, n, 1)
    return BatchMatmul(lead, m, n, k, *operands, tuple(order or range(len(lead) + 2)), dtype)


def attention_like(b, s, h, d):
    """Scores of queries and keys [b, s, h, d] as they come out of a projection: keys lie transposed."""
    place = (0, s * h * d, d, h * d, 1)
    keys = (0, s * h * d, d, 1, h * d)
    return BatchMatmul((b, h), s, s, d, (b, s, h * d), place, (b, s, h * d), keys, (0, 1, 2, 3))


@pytest.mark.thorough
@pytest.mark.parametrize("machine", SWEPT)
def test_shapes_and_strides(machine):
    ops = [
        plain((2, 3), 7, 19, 5),
        plain((2, 3), 4, 16, 9, (0, 2, 1, 3)),  # heads behind rows, as after an attention
        plain((), 13, 37, 8),
        plain((3,), 1, 1, 1),
        plain((2,), 1, 7 * machine.lanes + 3, 6),  # one row: B is not copied, but for its last columns
        plain((2,), 5, 1, 33),
        attention_like(2, 11, 3, 10),
        attention_like(1, 21, 2, 16),
        # the right operand broadcast over the first axis, the left one read with an offset and gaps
        BatchMatmul(
            (2, 2), 6, 10, 4, (400,), (3, 100, 50, 6, 1), (2, 4, 10), (0, 0, 40, 10, 1), (2, 0, 1, 3)
        ),
        # both transposed: neither rows nor columns of the right operand follow one another
        BatchMatmul((2,), 6, 9, 4, (4, 6, 2), (0, 1, 2, 12), (4, 9, 2), (0, 1, 18, 2), (0, 1, 2)),
    ]
    check_shapes(SPACE, ops, machine)


@pytest.mark.thorough
@pytest.mark.parametrize("machine", SWEPT)
def test_float64(machine):
    keys = dataclasses.replace(attention_like(2, 11, 3, 10), dtype="float64")
    apart = BatchMatmul(
        (2,), 6, 9, 4, (4, 6, 2), (0, 1, 2, 12), (4, 9, 2), (0, 1, 18, 2), (0, 1, 2), "float64"
    )
    ops = [keys, apart, plain((2,), 13, 37, 19, dtype="float64"), plain((), 1, 21, 6, dtype="float64")]
    check_shapes(SPACE, ops, machine, tolerance=1e-13)


def test_defaults_and_refusals():
    avx2 = MACHINES["avx2"]
    for machine in MACHINES.values():
        for op in (plain((2,), 1, 1, 1), plain((1,), 300, 1000, 64), attention_like(1, 128, 12, 64)):
            SPACE.check(op, SPACE.default(op, machine), machine)
            for rows, vectors in SPACE.knobs(op, machine)[0].choices:
                assert rows <= MOST_ROWS[machine.registers][vectors]
    assert SPACE.refuses(Matmul((3,), 4, 5), avx2) == "not a product of two computed tensors"
    assert SPACE.refuses(plain((0,), 4, 5, 6), avx2) == "an extent is zero"
    assert "does not fit" in SPACE.refuses(plain((1,), 4, 5, 1 << 20), avx2)


def test_short_reductions_take_large_tiles():
    """What a tile costs beside its products is shared by more of them."""
    rows, vectors = SPACE.default(plain((8,), 49, 49, 32), MACHINES["avx512"])["tile"]
    assert rows * vectors >= 8


def test_results_that_memory_waits_for_are_written_row_by_row():
    avx512 = MACHINES["avx512"]
    assert SPACE.default(plain((32,), 384, 512, 3), avx512)["order"] == ROWS
    assert SPACE.default(plain((12,), 128, 128, 64), avx512)["order"] == PANELS


@pytest.mark.parametrize(
    "op", [plain((), 27, 37, 3), plain((5,), 9, 40, 2, (1, 0, 2)), *thorough([attention_like(2, 21, 2, 5)])]
)
def test_rows_in_pieces(op):
    machine = MACHINES["avx2"]
    points = [{"tile": tile, "unroll": 4, "order": ROWS} for tile in ((4, 2), (6, 1), (2, 4))]
    arrays = sample_inputs(op)
    for run in point_runners(SPACE, op, points, machine):
        # Sums of few products in another order.
        np.testing.assert_allclose(run(*arrays), op.reference(*arrays), rtol=1e-5, atol=1e-5)


def test_bad_values_stay_in_their_rows_and_columns():
    op = plain((2,), 5, 9, 6)
    (run,) = point_runners(SPACE, op, [SPACE.default(op, MACHINES["avx2"])], MACHINES["avx2"])
    arrays = sample_inputs(op)
    clean = run(*arrays)
    arrays[0][1 * 5 * 6 + 2 * 6 + 3] = np.nan  # batch 1, row 2
    spoiled = run(*arrays)
    assert np.isnan(spoiled[1, 2]).all()
    keep = np.ones((2, 5, 9), bool)
    keep[1, 2] = False
    np.testing.assert_array_equal(spoiled[keep], clean[keep])
