"""Cases of grids that run by default."""

from itertools import combinations, product

import pytest

from tests.selection import covering


@pytest.mark.parametrize("sizes", [(2, 2), (6, 4), (2, 3, 2), (3, 3, 3), (2, 1, 4, 2)])
def test_all_values_and_of_three_axes_all_pairs_occur(sizes):
    cases = list(product(*map(range, sizes)))
    kept = [cases[at] for at in covering(cases)]
    width = 1 if len(sizes) == 2 else 2
    for axes in combinations(range(len(sizes)), width):
        wanted = set(product(*(range(sizes[axis]) for axis in axes)))
        assert {tuple(case[axis] for axis in axes) for case in kept} == wanted
    assert len(kept) <= max(a * b for a, b in combinations(sizes, 2)) * (1.4 if width == 2 else 1)
    if len(sizes) == 2:
        assert len(kept) == max(sizes)


def test_holes_of_a_grid_are_left_out():
    cases = [(0, 0), (0, 1), (1, 1)]
    assert covering(cases) == [0, 2]
