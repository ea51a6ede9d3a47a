"""Cases of grids that run by default."""

from itertools import combinations, product

import pytest

from tests.selection import covering, named


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


def test_cases_without_a_place_in_the_default_selection_are_thorough():
    cases = named({"pair": (1, 2), "text": "one"}, {"text"})
    assert [(case.id, case.values) for case in cases] == [("pair", (1, 2)), ("text", ("one",))]
    assert [[mark.name for mark in case.marks] for case in cases] == [["thorough"], []]
    assert [case.values for case in named(["a", "b"], {"a"})] == [("a",), ("b",)]


def test_a_default_case_that_there_is_not_is_an_error():
    with pytest.raises(KeyError, match=r"no case is named \['gone'\]; the names are \['a', 'b'\]"):
        named(["a", "b"], {"a", "gone"})
