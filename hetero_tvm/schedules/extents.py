"""Sizes that are known when a model runs: polynomials of symbols and of whole quotients of these.

A strided convolution makes ``n`` elements ``(n - 3)//2 + 1``, padding to whole blocks ``8*((n + 7)//8)``.
Such a quotient is a name of its own in a polynomial.  The name tells what is divided and by what, so that
whoever reads it knows its value from those of the symbols.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.runtime.signature import quotient_parts, size_of, terms_of

Sizes = Mapping[str, int]
"""Value of each symbol, and of quotients that are looked for."""


class Unfit(Exception):
    """Reason why something cannot be said in terms of the symbols."""


@dataclass(frozen=True)
class Extent:
    """A polynomial, with whole coefficients, of symbols and of quotients.

    Attributes
    ----------
    terms : (names that are multiplied, factor), in order.
    """

    terms: tuple[tuple[tuple[str, ...], int], ...]

    @classmethod
    def of(cls, text: str) -> Extent:
        """The polynomial that a name or a text of :meth:`__str__` is."""
        if quotient_parts(text) is not None:
            return cls((((text,), 1),))
        return cls(tuple((names, factor) for factor, names in terms_of(text)))

    def at(self, sizes: Sizes) -> int:
        """Value for these sizes."""
        return sum(factor * math.prod(size_of(name, sizes) for name in names) for names, factor in self.terms)

    def expression(self, variables: Mapping[str, Expr], dtype: str) -> Expr:
        """The polynomial of ``variables``, which are of ``dtype``; a quotient without one is computed.

        Raises
        ------
        Unfit : one of its symbols has no variable.
        """
        total: Expr | None = None
        for names, factor in self.terms:
            term: Expr | None = None
            for name in names:
                value = _value(name, variables, dtype)
                term = value if term is None else term * value
            if term is None:
                term = tirx.const(factor, dtype)
            elif factor != 1:
                term = term * tirx.const(factor, dtype)
            total = term if total is None else total + term
        return tirx.const(0, dtype) if total is None else total

    @property
    def symbol(self) -> str | None:
        """The symbol or quotient that this is; None for any other polynomial."""
        (names, factor), *more = self.terms
        return names[0] if not more and factor == 1 and len(names) == 1 else None

    def under(self, values: Mapping[str, Extent]) -> Extent:
        """The polynomial with other polynomials in place of names, inside of quotients too."""
        total: dict[tuple[str, ...], int] = {}
        for names, factor in self.terms:
            product = {(): factor}
            for name in names:
                grown: dict[tuple[str, ...], int] = {}
                for (a, x), (b, y) in itertools.product(product.items(), _under(name, values).terms):
                    key = tuple(sorted(a + b))
                    grown[key] = grown.get(key, 0) + x * y
                product = grown
            for key, value in product.items():
                total[key] = total.get(key, 0) + value
        return Extent(tuple((key, value) for key, value in total.items() if value))

    def solved_for(self, name: str) -> Extent | None:
        """Value of ``name`` where this polynomial is called so; None unless it is that plus others."""
        others = tuple((names, factor) for names, factor in self.terms if names != (name,))
        alone = len(others) < len(self.terms) and ((name,), 1) in self.terms
        if not alone or any(name in names or name in symbols_of(names) for names, _ in others):
            return None
        return Extent((((name,), 1), *((names, -factor) for names, factor in others)))

    def __str__(self) -> str:
        def text(names: tuple[str, ...], factor: int) -> str:
            if factor == -1 and names:
                return "-" + "*".join(names)
            return "*".join([*([str(factor)] if factor != 1 or not names else []), *names])

        return " + ".join(text(*term) for term in self.terms).replace("+ -", "- ") or "0"


def ordered(terms: Mapping[tuple[str, ...], int]) -> Extent:
    """The polynomial of these terms, in the order in which they are written."""
    kept = {names: factor for names, factor in terms.items() if factor}
    return Extent(tuple(sorted(kept.items(), key=lambda term: (-len(term[0]), term[0]))))


def quotient(numerator: Extent, divisor: int) -> Extent:
    """``numerator / divisor``, rounded down: what can be divided is, and a quotient of a quotient is one."""
    whole = {names: factor // divisor for names, factor in numerator.terms}
    rest = {names: factor % divisor for names, factor in numerator.terms if factor % divisor}
    if not any(rest):
        return ordered(whole)
    plus = rest.pop((), 0)
    if (common := math.gcd(divisor, *rest.values())) > 1:
        return _sum(
            ordered(whole),
            quotient(
                ordered({n: f // common for n, f in rest.items()} | {(): plus // common}), divisor // common
            ),
        )
    (names, factor), *more = rest.items()
    if not more and factor == 1 and len(names) == 1 and (inner := quotient_parts(names[0])) is not None:
        raised = shifted(Extent.of(inner[0]), plus * inner[1])
        return _sum(ordered(whole), quotient(raised, divisor * inner[1]))
    inside = ordered(rest | {(): plus})
    text = str(inside) if inside.symbol is not None and not inside.symbol.startswith("(") else f"({inside})"
    return _sum(ordered(whole), Extent((((f"({text}//{divisor})",), 1),)))


def shifted(extent: Extent, by: int) -> Extent:
    """``extent + by``."""
    return _sum(extent, ordered({(): by}))


def symbols_of(names: Iterable[str]) -> set[str]:
    """Symbols of which the values of these names follow."""
    found: set[str] = set()
    for name in names:
        parts = quotient_parts(name)
        inner = Extent.of(parts[0]) if parts is not None else None
        found |= {name} if inner is None else symbols_of(n for names, _ in inner.terms for n in names)
    return found


def completed(sizes: Sizes, names: Iterable[str]) -> dict[str, int]:
    """Sizes of symbols with the values of more names."""
    return {**sizes, **{name: size_of(name, sizes) for name in names}}


def _sum(first: Extent, second: Extent) -> Extent:
    terms = dict(first.terms)
    for names, factor in second.terms:
        terms[names] = terms.get(names, 0) + factor
    return ordered(terms)


def _value(name: str, variables: Mapping[str, Expr], dtype: str) -> Expr:
    if name in variables:
        return variables[name]
    if (parts := quotient_parts(name)) is None:
        raise Unfit(f"no operand has the extent {name} alone")
    numerator = Extent.of(parts[0]).expression(variables, dtype)
    return tirx.floordiv(numerator, tirx.const(parts[1], dtype))


def _under(name: str, values: Mapping[str, Extent]) -> Extent:
    if name in values:
        return values[name]
    parts = quotient_parts(name)
    if parts is None or not symbols_of([name]) & set(values):
        return Extent((((name,), 1),))
    return quotient(Extent.of(parts[0]).under(values), parts[1])
