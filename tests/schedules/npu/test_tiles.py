import itertools

import pytest

from hetero_tvm.schedules.npu.tiles import aligned_rows, even, extent_at, tile_count


@pytest.mark.parametrize("step", [1, 4, 16])
def test_even_tiles_are_as_few_as_allowed(step):
    for total, most in itertools.product((1, 7, 16, 100, 129), (1, 5, 16, 64, 200)):
        size = even(total, most, step)
        allowed = max(step, most // step * step)
        assert size <= allowed
        assert -(-total // size) == -(-total // allowed), (total, most, step)


def test_extents_of_all_tiles_add_up():
    """The last tile's extent is an expression where it differs from the others'."""
    assert extent_at(12, 4, 2) == 4 and extent_at(3, 8, 0) == 3
    for total, size in ((13, 4), (9, 8)):
        count = tile_count(total, size)
        sizes = [int(extent_at(total, size, i)) for i in range(count)]
        assert sum(sizes) == total and all(0 < n <= size for n in sizes)


def test_aligned_rows_end_where_a_tile_may_begin():
    for rows, row_bytes in itertools.product((1, 3, 16), (2, 12, 20, 64)):
        found = aligned_rows(rows, row_bytes, 32)
        assert found * row_bytes % 32 == 0
        assert not any(n * row_bytes % 32 == 0 for n in range(rows, found))
