"""Vector widths and limits of GPU kernels."""

import itertools

import pytest

from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.cuda.values import oversized, vector_of, whole


@pytest.mark.parametrize(("dtype", "size"), [("int8", 1), ("float16", 2), ("float32", 4), ("float64", 8)])
def test_vectors_are_the_widest_that_divide_all_extents(dtype, size):
    for extents in itertools.product((1, 6, 8, 24, 40, 64), (4, 12, 64)):
        fitting = [n for n in (1, 2, 4, 8) if n * size <= 16 and all(extent % n == 0 for extent in extents)]
        assert vector_of(dtype, *extents) == max(fitting)


def test_whole_parts():
    assert [whole(extent, 8) for extent in (0, 1, 8, 9)] == [0, 8, 8, 16]


def test_operands_beyond_32_bit_offsets_are_refused():
    assert "2^31" in oversized(Matmul((1 << 20,), 8, 1 << 12))
    assert oversized(Matmul((1 << 20,), 8, 1 << 10)) is None
