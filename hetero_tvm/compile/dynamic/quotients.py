"""Whole quotients among a model's extents: what strides, pools, frames and padding to whole blocks make.

An extent ``times * ((many * n + plus)//divisor) + more`` is found by asking: the model is imported at sizes
of ``n`` that tell the remaining candidates apart, until those left are equal at all sizes in the range.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hetero_tvm.compile.dynamic.constants_at import step_places
from hetero_tvm.compile.dynamic.quotient_candidates import Candidate, quotient_in
from hetero_tvm.errors import HeteroTVMError, UsageError
from hetero_tvm.frontend import ImportedModel
from hetero_tvm.frontend.ranges import steps
from hetero_tvm.frontend.relations import least_steps
from hetero_tvm.frontend.signature import OpenShapes, Symbol
from hetero_tvm.frontend.telling import telling_sizes
from hetero_tvm.host.tvm import relax
from hetero_tvm.runtime.signature import quotient_parts
from hetero_tvm.schedules.extents import Extent, Sizes, Unfit, completed, symbols_of
from hetero_tvm.schedules.fitting import CONFIRMING, fit, telling

_Numbers = Callable[[ImportedModel], list[int]]
_MOST_IMPORTS = 48
"""Imports at other sizes, for one symbol, after which what is not known is left open."""
_MANY = (1, 2, 3, 4, 5)
"""Multiples of a size that a quotient may be of."""
_MOST_DIVISOR = 1 << 14
_MOST_ASKED = 512
"""Sizes among which the next one to import at is looked for, and candidates that it should divide."""
_CONFIRMING = 3
"""Further sizes at which a quotient must hold that is unusual, or of a model that is another one at some."""
_REFUSED = 8
"""Sizes in a row at which the model is another one; those candidates go on then that agree with them."""
_PLACES = 17
"""Values, of what is added inside of a quotient, that stand for all that are possible."""


def with_quotients(model: ImportedModel) -> ImportedModel:
    """The model with open sizes, imported at sizes that tell the quotients among its extents as well.

    A model without quotients comes back as it is.
    """
    opened = model.open
    assert opened is not None
    models = (model, *opened.others)
    masks = {len(step_places(each.module)) for each in models}
    numbers = _numbers if len(masks) == 1 else extents_of
    known = list(map(numbers, models))
    beside = {s.name: _beside(s, opened.sizes[0][s.name]) for s in opened.symbols}
    if len(set(map(len, known))) > 1 or _hold(known, opened, beside, numbers):
        return model
    names: list[str] = []
    imported = {_key(at): one for at, one in zip(opened.sizes, (model, *opened.others), strict=True)}
    for symbol in opened.symbols:
        names += _Search(opened, symbol, imported, numbers).run()
    if not names:
        return model
    tops = opened.sizes[0]
    others = {s.name: _liked(s, tops[s.name]) for s in opened.symbols}
    while True:
        sizes = telling(tops, names, others)
        several = []
        for at in sizes:
            if _key(at) not in imported:
                imported[_key(at)] = opened.at({name: at[name] for name in tops})
            several.append(imported[_key(at)])
        usual = steps(several[0])
        special = [at for at, one in zip(sizes, several, strict=True) if steps(one) != usual]
        if any(_does_more(one, usual) for one in several):
            raise _special_at_the_top(model, opened, usual)
        fewer = {name: _others(each, tops[name], name, special, names) for name, each in others.items()}
        if special and not all(fewer.values()):
            sizes, several = _usual(sizes, special, completed(opened.sizes[-1], names), imported)
            break  # the lifting says where they differ
        if not special:
            break
        others = fewer
    _refuse_untold(model, opened, names, sizes)
    fresh = dataclasses.replace(opened, sizes=sizes, others=tuple(several[1:]))
    return dataclasses.replace(several[0], open=fresh)


def _usual(
    sizes: Sequence[Sizes], special: Sequence[Sizes], last: Sizes, imported: Mapping[Any, ImportedModel]
) -> tuple[tuple[Sizes, ...], list[ImportedModel]]:
    """Sizes without those that only confirm and at which the model is another one (at the size of a table a
    network does not stretch it), and the models there; ``last`` confirmed the import."""
    kept = [at for at in sizes if at not in special]
    telling_alone = len(sizes) - CONFIRMING
    if all(at in kept for at in sizes[:telling_alone]) and last not in special:
        kept += [] if last in kept else [last]
        sizes = kept
    return tuple(sizes), [imported[_key(at)] for at in sizes]


def _others(
    values: Sequence[int], top: int, name: str, special: Sequence[Sizes], quotients: Sequence[str]
) -> list[int]:
    """Values of a symbol without those at which the model is another one, as at the multiples of what it pads
    to: with a value go those of the same rest by the largest divisor."""
    parts = [quotient_parts(q) for q in quotients if symbols_of([q]) == {name}]
    divisor = max((part[1] for part in parts if part is not None), default=1)
    left_out = {at[name] % divisor if divisor > 2 else at[name] for at in special if at[name] != top}
    return [n for n in values if (n % divisor if divisor > 2 else n) not in left_out]


def _does_more(one: ImportedModel, usual: list[tuple[str, bool]]) -> bool:
    """Whether a model pads where the ``usual`` steps pad by nothing."""
    found = steps(one)
    return len(found) == len(usual) and any(
        idle and not there for (_, idle), (_, there) in zip(usual, found, strict=True)
    )


def _special_at_the_top(
    model: ImportedModel, opened: OpenShapes, usual: list[tuple[str, bool]]
) -> UsageError:
    """Refusal of a range whose largest sizes are those at which nothing is padded: kernels are derived from
    what the model is there, and would pad nowhere."""
    return UsageError(
        f"{model.name} pads by nothing at its largest sizes, and by something at others of its range",
        hint=_in_steps(opened, usual),
    )


def _in_steps(opened: OpenShapes, usual: list[tuple[str, bool]]) -> str:
    """Advice to give multiples, at which the model takes its ``usual`` steps."""

    def at(sizes: Sizes) -> ImportedModel:
        one = opened.at(sizes)
        if steps(one) != usual:
            raise UsageError("the model pads")
        return one

    fewer = least_steps(opened.symbols, at)
    if fewer is None:
        return "give fixed sizes, one library each"
    return f"multiples pad nothing: {', '.join(map(str, fewer))}"


def _refuse_untold(
    model: ImportedModel, opened: OpenShapes, names: Sequence[str], sizes: Sequence[Sizes]
) -> None:
    """Refuse a range of which the sizes that were imported leave one rest only by a quotient's divisor, as
    where all others are special: what is padded could be that rest, or always as much.

    Raises
    ------
    UsageError : advises multiples.
    """
    for name in names:
        parts = quotient_parts(name)
        assert parts is not None
        inside, (symbol, *more) = Extent.of(parts[0]), symbols_of([name])
        every = next((s.sizes for s in opened.symbols if s.name == symbol), range(0))[: 4 * parts[1]]
        told = {inside.at(at) % parts[1] for at in sizes}
        if more or len(told) > 1 or len({inside.at({symbol: n}) % parts[1] for n in every}) < 2:
            continue
        whole = math.lcm(*(part[1] for part in map(quotient_parts, names) if part is not None))
        multiples = {s.name: max(s.high - s.high % whole, whole) for s in opened.symbols}
        raise UsageError(
            f"{model.name} pads at some sizes of its range and not at others, or by another amount",
            hint=_in_steps(opened, steps(opened.at(multiples))),
        )


def images_differ(model: ImportedModel) -> bool:
    """Whether rows or columns of anything have other sizes at the sizes that a model is imported at; those of
    volumes are behind their depth."""
    assert model.open is not None
    several = [_shapes(each) for each in (model, *model.open.others)]
    together = zip(*several, strict=False)
    return any(len({shape[3 if len(shape) == 5 else 2 :] for shape in each}) > 1 for each in together)


def _beside(symbol: Symbol, top: int) -> int:
    """The size next to the largest: from one to the next, a quotient grows by nothing or by too much."""
    return top - symbol.step if top - symbol.step >= min(symbol.low, 2 * symbol.step) else top + symbol.step


def _key(sizes: Sizes) -> tuple[tuple[str, int], ...]:
    return tuple((name, size) for name, size in sizes.items() if quotient_parts(name) is None)


def extents_of(model: ImportedModel) -> list[int]:
    """Extents of all that a model computes, in order."""
    return [extent for shape in _shapes(model) for extent in shape]


def _numbers(model: ImportedModel) -> list[int]:
    """Numbers of a model that may be quotients: its extents, and behind them where masks change."""
    return [*extents_of(model), *step_places(model.module)]


def _shapes(model: ImportedModel) -> list[tuple[int, ...]]:
    """Shapes of all that a model computes, in order, and of its results (which may be its inputs)."""
    found: list[tuple[int, ...]] = []

    def note(ty: Any) -> None:
        if isinstance(ty, relax.TupleType):
            for field in ty.fields:
                note(field)
        elif isinstance(ty, relax.TensorType) and ty.shape is not None:
            found.append(tuple(map(int, ty.shape.values)))

    for block in model.module["main"].body.blocks:
        for binding in block.bindings:
            note(binding.var.ty)
    note(model.module["main"].body.ty)
    return found


def _hold(known: Sequence[Sequence[int]], opened: OpenShapes, at: Sizes, numbers: _Numbers) -> bool:
    """Whether all extents are polynomials of the symbols, next to the largest sizes too."""
    try:
        found = [fit(values, opened.sizes) for values in dict.fromkeys(zip(*known, strict=True))]
        there = numbers(opened.at(at))
    except Unfit:
        return False
    except HeteroTVMError:  # the model may refuse sizes that nobody asked for
        return True
    first = dict(zip(dict.fromkeys(zip(*known, strict=True)), found, strict=True))
    wanted = [first[values] for values in zip(*known, strict=True)]
    return there == [e.at(at) if isinstance(e, Extent) else e for e in wanted]


def _liked(symbol: Symbol, top: int) -> list[int]:
    """Sizes of a symbol, in the upper part of its range, those that :func:`telling_sizes` takes first."""
    first = [at[symbol.name] for at in telling_sizes([symbol])]
    low = max(2, symbol.low, top // 3)
    between = np.arange(low + -low % symbol.step, top, symbol.step)
    others = np.random.default_rng(top).permutation(between)[:200].tolist()
    return [*first[1:], *(n for n in others if n not in first)]


class _Search:
    """Search for the quotients of one symbol, the others at their largest sizes.

    Parameters
    ----------
    imported : the model at sizes where it is imported already; new ones are added.
    numbers : gives what of a model may be quotients.
    """

    def __init__(
        self, opened: OpenShapes, symbol: Symbol, imported: dict[Any, ImportedModel], numbers: _Numbers
    ):
        self._numbers = numbers
        self._opened, self._symbol, self._imported = opened, symbol, imported
        self._tops = {s.name: opened.sizes[0][s.name] for s in opened.symbols}
        self._top = self._tops[symbol.name]
        self._known: dict[int, list[int]] = {}
        self._refused: dict[int, set[int]] = {}
        """Extents at sizes where the model is another one; none where it refuses them."""
        self._names: list[str] = []

    def run(self) -> list[str]:
        """Names of the quotients, those of which others are quotients first."""
        spread = (self._top, _beside(self._symbol, self._top), *_liked(self._symbol, self._top)[:3])
        for size in spread:
            self._ask(size)
        while (place := self._unknown()) is not None:
            found = self._quotient(place)
            if found is None:
                break  # whoever needs it says so
            self._names.append(found)
        return self._names

    def _ask(self, size: int) -> bool:
        """Import at a size; False where the model refuses it."""
        if size in self._known or size in self._refused:
            return size in self._known
        at = {**self._tops, self._symbol.name: size}
        try:
            if _key(at) not in self._imported:
                self._imported[_key(at)] = self._opened.at(at)
            extents = self._numbers(self._imported[_key(at)])
        except HeteroTVMError:
            extents = []
        if self._known and len(extents) != len(self._known[self._top]):
            self._refused[size] = set(extents)
            return False
        self._known[size] = extents
        return True

    def _unknown(self) -> int | None:
        """Place of the first extent that is no polynomial of what is known."""
        sizes = [completed({self._symbol.name: size}, self._names) for size in self._known]
        seen: set[tuple[int, ...]] = set()
        for place, values in enumerate(zip(*self._known.values(), strict=True)):
            if values in seen:
                continue
            seen.add(values)
            try:
                fit(values, sizes)
            except Unfit:
                return place
        return None

    def _quotient(self, place: int) -> str | None:
        """The quotient that the extent at a place has in it; None where none does."""
        bases = [Extent.of(name) for name in (self._symbol.name, *self._names)]
        for many in _MANY:
            for base in bases:
                if (found := self._narrowed(place, base, many)) is not None:
                    return found
        return None

    def _narrowed(self, place: int, base: Extent, many: int) -> str | None:
        """The only quotient of ``many * base`` that the extent may have in it."""
        confirmed = many == 1 and not self._refused
        while candidates := list(self._candidates(place, base, many)):
            ends = [(c, plus) for c in candidates for plus in dict.fromkeys((c.least, c.most))]
            size = self._differing(ends, base)
            if size is None and not confirmed:
                confirmed = True
                self._ask_others()
                continue
            if size is None:
                # Among multiples many quotients are one: the plainest has no rest, or is of the size itself.
                first = next((c for c in candidates if self._is_whole(c)), candidates[0])
                plus = first.least if self._symbol.step == 1 else min(max(0, first.least), first.most)
                if self._is_whole(first):
                    plus = first.most // first.divisor * first.divisor
                fits = self._fitting([(first, plus)], place, base)
                return quotient_in(first.name(plus)) if fits else None
            if len(self._known) > _MOST_IMPORTS:
                return None
            if not self._divide(candidates, place, base, size):
                return self._special(place, candidates, base)
        return None

    def _is_whole(self, candidate: Candidate) -> bool:
        """Whether it divides all sizes without a rest."""
        divisor = candidate.divisor
        return self._symbol.step % divisor == 0 and candidate.most // divisor * divisor >= candidate.least

    def _special(self, place: int, candidates: Sequence[Candidate], base: Extent) -> str | None:
        """The quotient among candidates that differ only where the model is another one: there too its value
        is an extent, as of what is not padded where it is a multiple."""
        if not any(self._refused.values()):
            return None
        fitting = self._fitting(self._each(candidates), place, base)
        if not fitting or self._differing(fitting, base) is not None:
            return None
        return quotient_in(fitting[0][0].name(fitting[0][1]))

    def _fitting(
        self, several: Sequence[tuple[Candidate, int]], place: int, base: Extent
    ) -> list[tuple[Candidate, int]]:
        """Candidates whose values are extents where the model is another one."""
        sizes = [size for size, extents in self._refused.items() if extents]
        if not sizes or not several:
            return list(several)
        there = self._values(several, base, np.array(sizes)) + self._known[self._top][place]
        return [
            pair
            for pair, values in zip(several, there, strict=True)
            if all(int(v) in self._refused[size] for v, size in zip(values, sizes, strict=True))
        ]

    def _ask_others(self) -> None:
        """Import at a few sizes more: few values agree by accident with a quotient that nobody computes."""
        generator = np.random.default_rng(self._top)
        sizes = generator.permutation(np.array(self._symbol.sizes))[:_MOST_ASKED]
        left = (n for n in sizes.tolist() if n not in self._known and n not in self._refused)
        told = (n for n in itertools.islice(left, 4 * _CONFIRMING) if self._ask(n))
        for _ in itertools.islice(told, _CONFIRMING):
            pass

    def _values(
        self, candidates: Sequence[tuple[Candidate, int]], base: Extent, sizes: np.ndarray
    ) -> np.ndarray:
        """Values of each candidate at the sizes, less its value at the largest."""
        there = np.array([base.at({self._symbol.name: int(n)}) for n in (*sizes, self._top)])
        values = np.array([c.values(there, plus) for c, plus in candidates])
        return values[:, :-1] - values[:, -1:]

    def _differing(self, candidates: Sequence[tuple[Candidate, int]], base: Extent) -> int | None:
        """A size in the range at which the candidates are not equal; None where they are the same."""
        first, *others = candidates
        sizes = np.array(self._symbol.sizes)
        for other in others:
            values = self._values([first, other], base, sizes)
            if (differing := np.flatnonzero(values[0] != values[1])).size:
                return int(sizes[differing[len(differing) // 2]])
        return None

    def _divide(self, candidates: Sequence[Candidate], place: int, base: Extent, size: int) -> bool:
        """Import at the size that divides the candidates best; ``size`` does.  False where none is left."""
        generator = np.random.default_rng(len(self._known))
        several = [
            (c, int(p)) for c in candidates for p in np.unique(np.linspace(c.least, c.most, _PLACES).round())
        ]
        if len(several) > _MOST_ASKED:
            several = [several[n] for n in generator.choice(len(several), _MOST_ASKED, replace=False)]
        every = self._symbol.sizes
        while True:
            sizes = every.start + every.step * generator.integers(0, len(every), _MOST_ASKED)
            sizes = np.unique([*sizes, size])
            values = self._values(several, base, sizes)
            largest = [np.unique(column, return_counts=True)[1].max() for column in values.T]
            best = [int(sizes[n]) for n in np.argsort(largest) if largest[n] < len(several)]
            asked = [n for n in (*best, size) if n not in self._known and n not in self._refused][:_REFUSED]
            if any(map(self._ask, asked)):
                return True
            if not asked:
                return False
            several = self._fitting(self._each(candidates) or several, place, base) or several

    @staticmethod
    def _each(candidates: Sequence[Candidate]) -> list[tuple[Candidate, int]]:
        """Candidates by what is added inside; none where they are too many."""
        if sum(c.most - c.least + 1 for c in candidates) > _MOST_ASKED:
            return []
        return [(c, plus) for c in candidates for plus in range(c.least, c.most + 1)]

    def _candidates(self, place: int, base: Extent, many: int) -> Iterator[Candidate]:
        """Quotients that agree with all known values, those with the least divisors first."""
        sizes = list(self._known)
        u = np.array([many * base.at({self._symbol.name: size}) for size in sizes], "int64")
        v = np.array([self._known[size][place] for size in sizes], "int64")
        order = np.argsort(u)
        u, v = u[order], v[order]
        step, wide = int(np.gcd.reduce(v - v[0])), int(u[-1] - u[0])
        if not step or not wide:
            return
        for times in (t for t in range(1, step + 1) if step % t == 0):
            w = (v - v[0]) // times
            grown = abs(int(w[-1]))
            if w[-1] < 0 or not grown:
                continue
            lowest = max(2, math.ceil((wide + 1) / (grown + 1)))
            highest = min(_MOST_DIVISOR, wide // (grown - 1) + 1 if grown > 1 else _MOST_DIVISOR)
            if highest < lowest:
                continue
            divisors = np.arange(lowest, highest + 1)[:, None]
            least, most = (divisors * w - u).max(1), (divisors * w - u + divisors - 1).min(1)
            for n in np.flatnonzero(least <= most):
                divisor = int(divisors[n, 0])
                if math.gcd(divisor, many) == 1 or many == 1:
                    yield Candidate(base, many, times, divisor, int(least[n]), int(most[n]))
