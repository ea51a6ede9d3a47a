"""Extents that are known when a model runs, found from what they are at a few sizes.

A model is imported and optimized at several sizes of its symbols, the *witnesses*.  A number that differs
between them is an expression of the symbols: :func:`fit` finds it from all witnesses but the last, which must
confirm it.  So no pass has to know about symbols, and what cannot be said in them is told, not guessed.

The sizes come in a fixed order: all symbols at their largest value; for each symbol in turn the same with
another value of that one alone; last, other values of all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hetero_tvm.host.tvm import Expr, tirx

Sizes = Mapping[str, int]
"""Value of each symbol."""
_Terms = dict[tuple[str, ...], Fraction]


class Unfit(Exception):
    """Reason why something cannot be said in terms of the symbols."""


@dataclass(frozen=True)
class Extent:
    """A polynomial of symbols with whole coefficients.

    Attributes
    ----------
    terms : (symbols that are multiplied, factor), in order.
    """

    terms: tuple[tuple[tuple[str, ...], int], ...]

    def at(self, sizes: Sizes) -> int:
        """Value for these sizes."""
        return sum(factor * math.prod(sizes[name] for name in names) for names, factor in self.terms)

    def expression(self, variables: Mapping[str, Expr], dtype: str) -> Expr:
        """The polynomial of ``variables``, which are of ``dtype``.

        Raises
        ------
        Unfit : one of its symbols has no variable.
        """
        total: Expr | None = None
        for names, factor in self.terms:
            term: Expr | None = None
            for name in names:
                if name not in variables:
                    raise Unfit(f"no operand has the extent {name} alone")
                term = variables[name] if term is None else term * variables[name]
            if term is None:
                term = tirx.const(factor, dtype)
            elif factor != 1:
                term = term * tirx.const(factor, dtype)
            total = term if total is None else total + term
        return tirx.const(0, dtype) if total is None else total

    @property
    def symbol(self) -> str | None:
        """The symbol that this is; None for any other polynomial."""
        (names, factor), *more = self.terms
        return names[0] if not more and factor == 1 and len(names) == 1 else None

    def under(self, values: Mapping[str, Extent]) -> Extent:
        """The polynomial with other polynomials in place of symbols."""
        total: dict[tuple[str, ...], int] = {}
        for names, factor in self.terms:
            product = {(): factor}
            for name in names:
                other = values.get(name, Extent((((name,), 1),)))
                grown: dict[tuple[str, ...], int] = {}
                for (a, x), (b, y) in itertools.product(product.items(), other.terms):
                    key = tuple(sorted(a + b))
                    grown[key] = grown.get(key, 0) + x * y
                product = grown
            for key, value in product.items():
                total[key] = total.get(key, 0) + value
        return Extent(tuple((key, value) for key, value in total.items() if value))

    def solved_for(self, symbol: str) -> Extent | None:
        """Value of ``symbol`` where this polynomial is called so; None unless it is that plus others."""
        others = tuple((names, factor) for names, factor in self.terms if names != (symbol,))
        alone = len(others) < len(self.terms) and ((symbol,), 1) in self.terms
        if not alone or any(symbol in names for names, _ in others):
            return None
        return Extent((((symbol,), 1), *((names, -factor) for names, factor in others)))

    def __str__(self) -> str:
        def text(names: tuple[str, ...], factor: int) -> str:
            if factor == -1 and names:
                return "-" + "*".join(names)
            return "*".join([*([str(factor)] if factor != 1 or not names else []), *names])

        return " + ".join(text(*term) for term in self.terms).replace("+ -", "- ")


def fit(values: Sequence[int], sizes: Sequence[Sizes]) -> int | Extent:
    """The number, or the polynomial, that has these ``values`` at the ``sizes``.

    Raises
    ------
    Unfit : no product of sums of what the number is of each symbol, affine or a square, does.
    """
    if all(value == values[0] for value in values):
        return int(values[0])
    first, names = values[0], list(sizes[0])
    forms = [
        _forms(name, first, values[1 + n], sizes[0][name], sizes[1 + n][name])
        for n, name in enumerate(names)
        if values[1 + n] != first
    ]
    groupings = _groupings(len(forms)) if len(forms) <= _MOST_GROUPED else _ends(len(forms))
    for chosen in itertools.product(*forms):
        for groups in groupings:
            terms = _product([_sum([chosen[n] for n in group], first) for group in groups], first)
            if terms is None or any(factor.denominator != 1 for factor in terms.values()):
                continue
            ordered = sorted(terms.items(), key=lambda term: (-len(term[0]), term[0]))
            found = Extent(tuple((key, int(factor)) for key, factor in ordered if factor))
            if found.terms and all(found.at(at) == value for at, value in zip(sizes, values, strict=True)):
                return found
    at = ", ".join(str(dict(one)) for one in sizes)
    raise Unfit(f"a number is {', '.join(map(str, values))} at {at}: no polynomial")


@dataclass(frozen=True)
class OwnSymbols:
    """Symbols of one kernel: what its operands tell, in place of the model's.

    Where an operand has ``past + 1`` elements and none has ``past``, the kernel's ``past`` is the former, and
    the model's is ``past - 1``.  Where one has ``batch * rows`` and none has one of them, that is a symbol.

    Attributes
    ----------
    values : symbols of the model, as far as they differ.
    products : symbols that are one together.
    """

    values: Mapping[str, Extent]
    products: tuple[tuple[str, ...], ...] = ()

    def of(self, extent: Extent) -> Extent:
        """A polynomial of the model's symbols in the kernel's."""
        terms = extent.under(self.values).terms
        for product in self.products:
            terms = tuple((_joined(names, product), factor) for names, factor in terms)
        return Extent(terms)

    @property
    def joined(self) -> list[str]:
        """Names of the products."""
        return [_product_name(names) for names in self.products]


def _product_name(names: Sequence[str]) -> str:
    return "_x_".join(names)


def _joined(names: tuple[str, ...], product: tuple[str, ...]) -> tuple[str, ...]:
    """``names`` with a product that is among them as one symbol."""
    rest = list(names)
    for name in product:
        if name not in rest:
            return names
        rest.remove(name)
    return tuple(sorted([*rest, _product_name(product)]))


def rebased(extents: Sequence[Extent]) -> OwnSymbols:
    """The symbols of a kernel whose operands have these extents."""
    told = {extent.symbol for extent in extents}
    needed = dict.fromkeys(name for extent in extents for names, _ in extent.terms for name in names)
    values: dict[str, Extent] = {}
    for name in needed:
        if name in told:
            continue
        for extent in extents:
            if (value := extent.under(values).solved_for(name)) is not None:
                values = {other: known.under({name: value}) for other, known in values.items()}
                values[name] = value
                break
    own = OwnSymbols(values)
    told = {own.of(extent).symbol for extent in extents}
    products = []
    for extent in extents:
        terms = own.of(extent).terms
        if len(terms) == 1 and terms[0][1] == 1 and not told & set(terms[0][0]) and len(terms[0][0]) > 1:
            products.append(terms[0][0])
    return OwnSymbols(values, tuple(dict.fromkeys(products)))


_MOST_GROUPED = 5
"""Symbols of one number that all groupings are tried for."""


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


def _forms(name: str, first: int, other: int, size: int, changed: int) -> list[_Terms]:
    """Polynomials that a number may be of one symbol, of which two values are known."""
    slope = Fraction(first - other, size - changed)
    found: list[_Terms] = [{(name,): slope, (): first - slope * size}]
    if first * changed**2 == other * size**2:
        found.append({(name, name): Fraction(first, size**2)})
    return found


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


def _sum(forms: Sequence[_Terms], first: int) -> _Terms:
    """The sum of what each symbol alone changes, and of the value ``first``."""
    total: _Terms = {(): Fraction(first)}
    for form in forms:
        for key, factor in form.items():
            total[key] = total.get(key, Fraction(0)) + factor
        total[()] -= first
    return total


def lifted(values: Sequence[Any], sizes: Sequence[Sizes], make: Callable[[Extent], Any]) -> Any:
    """The common value of ``values``, with ``make(extent)`` for numbers that differ; tuples item by item
    and dataclasses field by field.

    Raises
    ------
    Unfit : something other than whole numbers differs.
    """
    first = values[0]
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        if any(type(value) is not type(first) for value in values):
            raise Unfit("another operator at other sizes")
        names = [field.name for field in dataclasses.fields(first)]
        parts = {name: lifted([getattr(v, name) for v in values], sizes, make) for name in names}
        return dataclasses.replace(first, **parts)
    if isinstance(first, tuple):
        if len({len(value) for value in values}) != 1:
            raise Unfit(f"{len(values[0])} or {len(values[1])} items, as the sizes are")
        items = [lifted(items, sizes, make) for items in zip(*values, strict=True)]
        return type(first)(*items) if hasattr(first, "_fields") else tuple(items)
    if isinstance(first, int) and not isinstance(first, bool):
        found = fit(values, sizes)
        return make(found) if isinstance(found, Extent) else found
    if any(value != first and not (value != value and first != first) for value in values):
        raise Unfit(f"{first!r} or {next(v for v in values if v != first)!r}, as the sizes are")
    return first


@dataclass(frozen=True)
class Witnesses:
    """Contracts of one call at several sizes.

    Attributes
    ----------
    ops : the contract at each of the sizes.
    sizes : in the order that the module's docstring tells.
    bounded : numbers of the operands that are constants of the largest size, of which a kernel reads as
        much as it needs from the front.
    told : at each of the sizes, shapes and dtypes of operands behind the contract's that only tell sizes.
    """

    ops: tuple[Any, ...]
    sizes: tuple[Sizes, ...]
    bounded: frozenset[int] = frozenset()
    told: tuple[Sequence[tuple[tuple[int, ...], str]], ...] = ()

    @functools.cached_property
    def _own(self) -> OwnSymbols:
        return rebased(self._extents)

    @functools.cached_property
    def _extents(self) -> list[Extent]:
        """Extents of operands that a call tells."""
        found: list[Extent] = []

        def note(extent: Extent) -> int:
            found.append(extent)
            return 0

        for n in range(len(self.largest.inputs)):
            if n not in self.bounded:
                lifted([tuple(op.inputs[n].shape) for op in self.ops], self.sizes, note)
        for several in zip(*self.told, strict=True):
            lifted([tuple(shape) for shape, _ in several], self.sizes, note)
        return found

    @functools.cached_property
    def symbols(self) -> list[str]:
        """The kernel's own symbols, of which operands tell the values."""
        extents = [self._own.of(extent) for extent in self._extents]
        return list(dict.fromkeys(name for extent in extents if (name := extent.symbol)))

    @property
    def largest(self) -> Any:
        """The contract at the largest sizes."""
        return self.ops[0]

    def at(self, sizes: Sizes) -> Any:
        """The contract at other sizes.  :class:`Unfit` when its fields are no polynomials."""
        return lifted(self.ops, self.sizes, lambda extent: extent.at(sizes))

    def shapes(self, variables: Mapping[str, Expr]) -> list[tuple[Any, ...]]:
        """Shapes of operands, of what only tells sizes, and of results, in order, as expressions of int64
        ``variables``."""
        told = self.told or ((),) * len(self.ops)
        each = [
            (*(o.shape for o in op.inputs), *(shape for shape, _ in more), *(o.shape for o in op.outputs))
            for op, more in zip(self.ops, told, strict=True)
        ]
        shapes = lifted(each, self.sizes, lambda extent: self._own.of(extent).expression(variables, "int64"))
        return [each[0][n] if n in self.bounded else shape for n, shape in enumerate(shapes)]

    def value(self, of: Callable[[Any], Any], variables: Mapping[str, Expr]) -> Any:
        """``of(contract)`` as numbers and expressions of int32 ``variables``."""
        return lifted(
            [of(op) for op in self.ops],
            self.sizes,
            lambda extent: self._own.of(extent).expression(variables, "int32"),
        )


class RunTimeOp:
    """A contract whose attributes are expressions of int32 variables where they depend on the sizes."""

    def __init__(self, witnesses: Witnesses, variables: Mapping[str, Expr]):
        self._witnesses, self._variables = witnesses, variables

    def __getattr__(self, name: str) -> Any:
        return self._witnesses.value(lambda op: getattr(op, name), self._variables)
