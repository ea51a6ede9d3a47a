"""Numbers that differ with a model's sizes, as expressions of these: found from a few sizes, the *witnesses*.

The first witness has all symbols at their largest value.  In others one symbol alone differs from it, so that
what a number is of each symbol is known; the rest, with other values of all symbols, confirm what is found.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np

from hetero_tvm.runtime.signature import quotient_parts, size_of
from hetero_tvm.schedules.extents import Extent, Sizes, Unfit, completed, ordered, symbols_of

_Terms = dict[tuple[str, ...], Fraction]
_Items = tuple[tuple[tuple[str, int], ...], ...]
"""Witnesses, each as its names with their values."""
_MOST_GROUPED = 5
"""Symbols of one number that all groupings are tried for."""
CONFIRMING = 3
"""Last witnesses of a model with quotients, which only confirm."""
_MOST_TOGETHER = 3
"""Names of one symbol (itself, quotients) of which a number may be a sum."""


def fit(values: Sequence[int], sizes: Sequence[Sizes]) -> int | Extent:
    """The number, or the polynomial, that has these ``values`` at the ``sizes``.

    Raises
    ------
    Unfit : no product of sums of what the number is of each symbol does: a sum of the symbol and of its
        quotients, or a product of two of these; of two symbols, a sum of areas does as well.
    """
    if all(value == values[0] for value in values):
        return int(values[0])
    found = _fitted(tuple(map(int, values)), tuple(tuple(one.items()) for one in sizes))
    if found is None:
        at = ", ".join(str({n: s for n, s in one.items() if quotient_parts(n) is None}) for one in sizes)
        raise Unfit(f"a number is {', '.join(map(str, values))} at {at}: no polynomial")
    return found


@functools.lru_cache(maxsize=1 << 14)
def _fitted(values: tuple[int, ...], sizes: _Items) -> Extent | None:
    """The polynomial with these values, of as few names as may be; None where there is none."""
    first, each = values[0], [dict(one) for one in sizes]
    for together in range(1, _MOST_TOGETHER + 1):
        forms = []
        for names, places in _alone(sizes):
            own = [values[n] for n in places]
            if any(value != first for value in own):
                forms.append(_forms(names, [each[n] for n in places], own, together))
        groupings = _groupings(len(forms)) if len(forms) <= _MOST_GROUPED else _ends(len(forms))
        for chosen in itertools.product(*forms) if forms else ():
            for groups in groupings:
                kinds = [list(_joint([chosen[n] for n in group], each[0], first)) for group in groups]
                for several in itertools.product(*kinds):
                    terms = _product(several, first)
                    if terms is None or any(factor.denominator != 1 for factor in terms.values()):
                        continue
                    found = ordered({key: int(factor) for key, factor in terms.items()})
                    if found.terms and all(found.at(at) == v for at, v in zip(each, values, strict=True)):
                        return found
    return None


def telling(
    tops: Sizes, quotients: Sequence[str], others: Mapping[str, Iterable[int]]
) -> tuple[dict[str, int], ...]:
    """Witnesses that tell all names apart.

    Parameters
    ----------
    tops : first value of each symbol.
    quotients : of the symbols.
    others : further values of each symbol, those first that are liked best.
    """
    alone: list[dict[str, int]] = []
    spare: dict[str, list[int]] = {}
    for name, top in tops.items():
        own = [q for q in quotients if symbols_of([q]) == {name}]
        values = [value for value in others[name] if value != top]
        chosen, missing = [top], list(itertools.combinations(own, 2)) or [(q,) for q in own]
        for value in values:
            if len(chosen) > 1 and not missing:
                break
            if len(chosen) == 1 or any(
                _rank([*chosen, value], name, pair) > _rank(chosen, name, pair) for pair in missing
            ):
                chosen.append(value)
                missing = [pair for pair in missing if _rank(chosen, name, pair) < len(pair) + 2]
        alone += [{**tops, name: value} for value in chosen[1:]]
        spare[name] = [value for value in values if value not in chosen] or chosen[1:] or [top]
    confirming = CONFIRMING if quotients else 1
    last = [{name: values[n % len(values)] for name, values in spare.items()} for n in range(confirming)]
    return tuple(completed(one, quotients) for one in (dict(tops), *alone, *last))


def _rank(values: Sequence[int], name: str, quotients: Sequence[str]) -> int:
    """Rank of 1, the symbol and the quotients at these values: full where they tell all of them apart."""
    rows = []
    for value in values:
        row = [1.0, float(value - values[0])]
        for quotient in quotients:
            parts = quotient_parts(quotient)
            row.append(float(size_of(quotient, {name: value}) * (parts[1] if parts else 1) - value))
        rows.append(row)
    return int(np.linalg.matrix_rank(np.array(rows)))


@functools.lru_cache(maxsize=64)
def _alone(sizes: _Items) -> tuple[tuple[tuple[str, ...], tuple[int, ...]], ...]:
    """Each symbol with its quotients, and the witnesses where no other symbol differs from the first's."""
    each = [dict(one) for one in sizes]
    symbols = [name for name in each[0] if quotient_parts(name) is None]
    quotients = [name for name in each[0] if quotient_parts(name) is not None]
    found = []
    for name in symbols:
        others = [other for other in symbols if other != name]
        places = [n for n, at in enumerate(each) if all(at[o] == each[0][o] for o in others)]
        names = (name, *(q for q in quotients if symbols_of([q]) == {name}))
        found.append((names, tuple(places)))
    return tuple(found)


def _forms(
    names: Sequence[str], sizes: Sequence[Sizes], values: Sequence[int], together: int
) -> list[_Terms]:
    """Polynomials, of at most so many names of one symbol, that have these values at these sizes."""
    found = [_combination([(one,)], sizes, values) for one in names]
    if values[0]:
        for pair in itertools.combinations_with_replacement(names, 2):
            factor = Fraction(values[0], sizes[0][pair[0]] * sizes[0][pair[1]] or 1)
            if all(factor * at[pair[0]] * at[pair[1]] == v for at, v in zip(sizes, values, strict=True)):
                found.append({tuple(sorted(pair)): factor})
    for count in range(2, together + 1):
        if len(sizes) > count:  # else any numbers are such a sum
            several = itertools.combinations(names, count)
            found += [_combination([(one,) for one in each], sizes, values) for each in several]
    return [form for form in found if form is not None]


def _combination(
    terms: Sequence[tuple[str, ...]], sizes: Sequence[Sizes], values: Sequence[int]
) -> _Terms | None:
    """The sum of multiples of ``terms`` and of a number that has these values; None where there is none."""
    rows = [[Fraction(at[names[0]]) for names in terms] + [Fraction(1)] for at in sizes]
    known: list[tuple[int, list[Fraction]]] = []
    for row, value in zip(rows, values, strict=True):
        line = [*row, Fraction(value)]
        for place, pivot in known:
            if line[place]:
                line = [a - line[place] * b for a, b in zip(line, pivot, strict=True)]
        place = next((n for n, number in enumerate(line[:-1]) if number), None)
        if place is None:
            if line[-1]:
                return None
            continue
        line = [number / line[place] for number in line]
        known = [(p, [a - old[place] * b for a, b in zip(old, line, strict=True)]) for p, old in known]
        known.append((place, line))
    if len(known) <= len(terms):
        return None
    solved = {place: line[-1] for place, line in known}
    return {**{names: solved[n] for n, names in enumerate(terms)}, (): solved[len(terms)]}


def _ends(count: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Groupings of all symbols multiplied, and of all added."""
    return tuple((n,) for n in range(count)), (tuple(range(count)),)


@functools.cache
def _groupings(count: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Ways to divide so many symbols into groups, from groups of one (a product) to one of all (a sum)."""
    if not count:
        return ((),)
    last, found = count - 1, []
    for groups in _groupings(last):
        found.append((*groups, (last,)))
        found += [(*groups[:n], (*group, last), *groups[n + 1 :]) for n, group in enumerate(groups)]
    return tuple(sorted(found, key=lambda groups: -len(groups)))


def _product(forms: Sequence[_Terms], first: int) -> _Terms | None:
    """The product of what a number is of each symbol alone; each has the value ``first`` once."""
    if len(forms) == 1:
        return forms[0]
    if not first:
        return None
    total: _Terms = {(): Fraction(first)}
    for form in forms:
        total = {
            tuple(sorted(a + b)): sum(
                (
                    x * y / first
                    for (c, x), (d, y) in itertools.product(total.items(), form.items())
                    if sorted(c + d) == sorted(a + b)
                ),
                Fraction(0),
            )
            for a, b in itertools.product(total, form)
        }
    return total


def _joint(forms: Sequence[_Terms], tops: Sizes, first: int) -> Iterator[_Terms]:
    """Polynomials of several symbols, from those of each alone: their sum; of two symbols, areas as well."""
    yield _sum(forms, first)
    if len(forms) == 2:
        yield from _areas(*forms, tops)


def _areas(one: _Terms, other: _Terms, tops: Sizes) -> Iterator[_Terms]:
    """Sums of areas and a number: the pixels of all levels of a pyramid, patches and a class token.

    Of one side alone, the factor of each name is the other side at its largest.
    """
    rows, columns = ([names for names in form if names] for form in (one, other))
    number = one.get((), Fraction(0))
    if number != other.get((), Fraction(0)) or len(rows) != len(columns):
        return
    for turned in itertools.permutations(columns):
        areas = {}
        for (row, *_), (column, *_) in zip(rows, turned, strict=True):
            factor = one[(row,)] / (tops[column] or 1) if (row,) in one else None
            if factor is None or other.get((column,)) != factor * tops[row]:
                break
            areas[tuple(sorted((row, column)))] = factor
        else:
            yield {**areas, (): number}


def _sum(forms: Sequence[_Terms], first: int) -> _Terms:
    """The sum of what each symbol alone changes, and of the value ``first``."""
    total: _Terms = {(): Fraction(first)}
    for form in forms:
        for key, factor in form.items():
            total[key] = total.get(key, Fraction(0)) + factor
        total[()] -= first
    return total
