"""Marks for parameters of the thorough and the exhaustive selection (see ``conftest.py``)."""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest


def thorough(cases: Iterable[Any]) -> list:
    """Parameters that the thorough selection takes; a tuple holds one value for each name."""
    mark = pytest.mark.thorough
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark) for case in cases]


def named(cases: Mapping[str, Any] | Iterable[str], by_default: Collection[str]) -> list:
    """Parameters with names: those in ``by_default`` run always, the others in the thorough selection.

    ``cases`` maps names to values, of which a tuple holds one value for each name of a parameter; names
    alone are their own values.  Raises ``KeyError`` for a name in ``by_default`` that no case has.
    """
    if not isinstance(cases, Mapping):
        cases = {name: name for name in cases}
    if unknown := set(by_default) - set(cases):
        raise KeyError(f"no case is named {sorted(unknown)}; the names are {list(cases)}")
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            id=name,
            marks=() if name in by_default else pytest.mark.thorough,
        )
        for name, value in cases.items()
    ]


def exhaustive(cases: Iterable[Any]) -> list:
    """Parameters that only the exhaustive selection takes; a tuple holds one value for each name."""
    mark = pytest.mark.exhaustive
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark) for case in cases]


def covering(cases: Sequence[tuple[Hashable, ...]]) -> list[int]:
    """Places of a few cases of a grid in which all values occur, and, of three or more axes, all pairs.

    Each case holds one value for each axis.  The cases that bring most that is new come first.
    """
    width = min(2, len(cases[0]) - 1)
    parts = [set(combinations(enumerate(case), width)) for case in cases]
    missing, places = set().union(*parts), []
    while missing:
        best = max(range(len(cases)), key=lambda at: (len(parts[at] & missing), -at))
        places.append(best)
        missing -= parts[best]
    return sorted(places)


def thin_grids(items: Sequence[pytest.Item]) -> None:
    """Leave most of every grid, the product of two or more ``parametrize``, to the thorough selection."""
    grids: dict[str, list[tuple[tuple[Hashable, ...], pytest.Item]]] = {}
    for item in items:
        if (case := _case(item)) is not None:
            grids.setdefault(item.nodeid.partition("[")[0], []).append((case, item))
    for grid in grids.values():
        kept = set(covering([case for case, _ in grid]))
        for at, (_, item) in enumerate(grid):
            if at not in kept:
                item.add_marker(pytest.mark.thorough)


def _case(item: pytest.Item) -> tuple[Hashable, ...] | None:
    """Identities of a test's values along each axis of its grid; None where there are fewer than two axes."""
    if any(item.iter_markers("thorough")) or any(item.iter_markers("exhaustive")):
        return None
    axes = [
        mark.args[0] if mark.args else mark.kwargs["argnames"] for mark in item.iter_markers("parametrize")
    ]
    if len(axes) < 2:
        return None
    names = [axis.replace(",", " ").split() if isinstance(axis, str) else axis for axis in axes]
    return tuple(tuple(id(item.callspec.params[name]) for name in axis) for axis in names)
