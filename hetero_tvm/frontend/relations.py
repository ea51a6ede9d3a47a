"""Relations between open dimensions that a model asks for: equality, sums of others, multiples of a step."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

from hetero_tvm.errors import HeteroTVMError
from hetero_tvm.frontend.signature import ImportedModel, Symbol, multiples
from hetero_tvm.frontend.telling import telling_sizes

_MOST_COMBINED = 6
"""Dimensions of one range of which pairs and larger parts are tried, each by an import."""
_STEPS = (2, 4, 8, 16, 32, 64)
"""Steps that are tried where a model does not import at all sizes of a range."""


def equal_symbols(
    symbols: Sequence[Symbol], at: Callable[[Mapping[str, int]], ImportedModel]
) -> dict[str, str] | None:
    """The first of the symbols, of those with one range, that each one has to be equal to; None where the
    model does not import with these equal either.

    A mask whose length has a name of its own is as long as the tokens all the same, and keys are as many as
    values, whatever the number of queries.
    """
    alike: dict[tuple[int, int, int], list[str]] = {}
    for s in symbols:
        alike.setdefault((s.low, s.high, s.step), []).append(s.name)
    if len(alike) == len(symbols):
        return None

    def chosen(groups: Iterable[Sequence[str]]) -> dict[str, str]:
        kept = {name: group[0] for group in groups for name in group}
        return {s.name: kept[s.name] for s in symbols}

    def imports(kept: Mapping[str, str]) -> bool:
        several = telling_sizes([s for s in symbols if kept[s.name] == s.name])
        return all(_imports(at, {name: sizes[own] for name, own in kept.items()}) for sizes in several)

    if not imports(chosen(alike.values())):
        return None
    ranges = {s.name: s for s in symbols}
    largest, *_ = telling_sizes(symbols)

    def parted(groups: list[list[str]], place: int, few: int) -> list[list[str]] | None:
        """The groups with so ``few`` symbols of one of them apart from it; None where they cannot be."""
        first = groups[place][0]
        other = telling_sizes([ranges[first]])[1][first]
        for part in itertools.combinations(groups[place], few):
            rest = [name for name in groups[place] if name not in part]
            split = [*groups[:place], rest, *groups[place + 1 :], list(part)]
            if _imports(at, {**largest, **dict.fromkeys(part, other)}) and imports(chosen(split)):
                return split
        return None

    groups = list(alike.values())
    for place in range(len(groups)):
        few = 1
        while 2 * few <= len(groups[place]) and (few == 1 or len(groups[place]) <= _MOST_COMBINED):
            if (split := parted(groups, place, few)) is not None:
                groups = split
            else:
                few += 1
    return chosen(groups)


def sum_of_others(
    symbols: Sequence[Symbol], at: Callable[[Mapping[str, int]], ImportedModel]
) -> dict[str, tuple[str, ...]] | None:
    """The symbols that stand for each one, where one is the sum of two others; None where the model does not
    import so either.

    A mask is as long as the past keys and the new tokens together, and its length has a name of its own.
    """
    ranges = {s.name: s for s in symbols}
    for name, total in ranges.items():
        for parts in itertools.combinations([n for n in ranges if n != name], 2):
            if total.high < sum(ranges[part].low for part in parts):
                continue  # nowhere the sum
            try:
                for sizes in telling_sizes([s for s in symbols if s.name != name]):
                    at({**sizes, name: sum(sizes[part] for part in parts)})
            except HeteroTVMError:
                continue
            return {n: parts if n == name else (n,) for n in ranges}
    return None


def least_steps(
    symbols: Sequence[Symbol], at: Callable[[Mapping[str, int]], ImportedModel]
) -> list[Symbol] | None:
    """The same ranges in the least steps with which the model imports; None where there are none.

    Encoders that halve images and join them again, doubled, take the multiples of 8 or 32 only.
    """

    def stepped(symbol: Symbol, step: int) -> Symbol:
        low, high = multiples(symbol.low, symbol.high, step)
        return dataclasses.replace(symbol, low=low, high=high, step=step) if max(1, low) < high else symbol

    def imports(sizes: Sequence[Mapping[str, int]]) -> bool:
        return all(_imports(at, one) for one in sizes)

    coarsest = [next((c for s in reversed(_STEPS) if (c := stepped(one, s)) != one), one) for one in symbols]
    if not imports([{symbol.name: symbol.high for symbol in coarsest}]):
        return None  # what is wrong are not the sizes between
    for step in _STEPS:
        found = [stepped(symbol, step) for symbol in symbols]
        if found == list(symbols) or not imports(telling_sizes(found)):
            continue
        for n, symbol in enumerate(symbols):
            fewer = [*found[:n], symbol, *found[n + 1 :]]
            if fewer != found and imports(telling_sizes(fewer)):
                found = fewer
        return found
    return None


def _imports(at: Callable[[Mapping[str, int]], ImportedModel], sizes: Mapping[str, int]) -> bool:
    try:
        at(sizes)
    except HeteroTVMError:
        return False
    return True
