"""Sizes to suggest for open dimensions, with which a model fits together.

A mask is as long as the past keys and the new tokens together, whatever the names of its dimensions are: what
a message suggests is tried, and put right where a size follows from others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

_Name = TypeVar("_Name", bound=Hashable)


def agreeing(
    usual: Mapping[_Name, int],
    given: Iterable[int],
    agreement: Callable[[Mapping[_Name, int]], float | None],
) -> dict[_Name, int]:
    """Sizes that agree, as near to the ``usual`` ones as may be; those that agree best where none do.

    One size after another becomes what brings the agreement forward.

    Parameters
    ----------
    given : sizes that are known, which others may be equal to.
    agreement : how much of the model fits together at these sizes, infinity for all of it; None when it is
        not to be asked again.
    """
    best, sizes = agreement(usual), dict(usual)
    while best is not None and not math.isinf(best):
        for name, size in _changes(sizes, tuple(given)):
            changed = {**sizes, name: size}
            found = agreement(changed)
            if found is None:
                return sizes
            if found > best:
                best, sizes = found, changed
                break
        else:
            return sizes
    return sizes


def _changes(sizes: Mapping[_Name, int], given: tuple[int, ...]) -> Iterator[tuple[_Name, int]]:
    """Each name with sizes that it may have: those of the others, and sums of two of these.  1, which is
    repeated along anything, comes last."""
    last = []
    for name in reversed(sizes):
        known = dict.fromkeys([*given, *(size for other, size in sizes.items() if other != name)])
        sums = map(sum, itertools.combinations_with_replacement(known, 2))
        found = dict.fromkeys([*known, *sums])
        yield from ((name, size) for size in found if size != 1)
        last.append((name, 1))
    yield from last
