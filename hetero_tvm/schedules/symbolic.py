"""Calls whose sizes are known when a model runs: their contracts, and the symbols that operands tell.

A model is imported and optimized at several sizes of its symbols, the *witnesses*.  A number that differs
between them is an expression of the symbols, which :mod:`hetero_tvm.schedules.fitting` finds.  So no pass has
to know about symbols, and what cannot be said in them is told, not guessed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetero_tvm.host.tvm import Expr, Var, tirx
from hetero_tvm.runtime.signature import quotient_parts
from hetero_tvm.schedules.extents import Extent, Sizes, Unfit, quotient, shifted, symbols_of
from hetero_tvm.schedules.fitting import fit


@dataclass(frozen=True)
class OwnSymbols:
    """Symbols of one kernel: what its operands tell, in place of the model's.

    Where an operand has ``past + 1`` elements and none has ``past``, the kernel's ``past`` is the former, and
    the model's is ``past - 1``.  Where one has ``batch * rows`` and none has one of them, that is a symbol,
    and so is ``16 * batch`` where none has ``batch``.

    Attributes
    ----------
    values : symbols of the model, as far as they differ.
    products : symbols that are one together.
    multiples : factor of each symbol that is told so many times.
    """

    values: Mapping[str, Extent]
    products: tuple[tuple[str, ...], ...] = ()
    multiples: Mapping[str, int] = field(default_factory=dict)

    def of(self, extent: Extent) -> Extent:
        """A polynomial of the model's symbols in the kernel's."""
        names = dict.fromkeys(name for names, _ in extent.terms for name in names)
        # What is in the value of another name may cancel: it stays what it is called until then.
        values = (self.values[name] for name in names if name in self.values)
        kept = {name for value in values for names_, _ in value.terms for name in names_}
        terms = extent.under({**self.values, **self._of_quotients(n for n in names if n not in kept)}).terms
        left = self._of_quotients(name for names_, _ in terms for name in names_ if name in kept)
        terms = Extent(terms).under(left).terms
        for product in self.products:
            terms = tuple((_joined(names, product), factor) for names, factor in terms)
        whole = Extent(tuple(self._in_multiples(names, factor) for names, factor in terms))
        return whole.under({name: Extent.of(self._part(name)) for name in self.multiples})

    def _of_quotients(self, names: Iterable[str]) -> dict[str, Extent]:
        """Quotients among ``names`` that are not told, as what they are of others."""
        found = {name: self._of_a_quotient(name) for name in names}
        return {name: part for name, part in found.items() if part is not None}

    def _of_a_quotient(self, name: str) -> Extent | None:
        """A quotient that is not told as one of another that is.

        ``h // 4`` is one of ``h // 2``, and ``(h + 7) // 8``, of which strides by 4 and by 2 are the reason,
        one of ``(h + 3) // 4``.
        """
        parts = quotient_parts(name)
        if parts is None or name in self.values:
            return None
        for told, value in self.values.items():
            other = quotient_parts(told)
            if other is None or parts[1] % other[1] or any(name in names for names, _ in value.terms):
                continue  # half of the image, rounded up, is told as all of it without half, rounded down
            apart = _difference(parts[0], other[0])
            if apart is not None and apart % other[1] == 0:
                return quotient(shifted(value, apart // other[1]), parts[1] // other[1])
        return None

    def _in_multiples(self, names: tuple[str, ...], factor: int) -> tuple[tuple[str, ...], int]:
        """A term with multiples in place of symbols, as far as its factor has theirs."""
        found = []
        for name in names:
            multiple = self.multiples.get(name, 1)
            if multiple > 1 and factor % multiple == 0:
                name, factor = f"{name}_x_{multiple}", factor // multiple
            found.append(name)
        return tuple(sorted(found)), factor

    def _part(self, name: str) -> str:
        """A symbol as a quotient of the multiple of it that is told."""
        multiple = self.multiples[name]
        return f"({name}_x_{multiple}//{multiple})"


def _difference(numerator: str, other: str) -> int | None:
    """The whole number that is between two polynomials; None where they differ in symbols."""
    mine, theirs = (dict(Extent.of(text).terms) for text in (numerator, other))
    constants = mine.pop((), 0), theirs.pop((), 0)
    return constants[0] - constants[1] if mine == theirs else None


def _product_name(names: Sequence[str]) -> str:
    return "_x_".join(map(variable_name, names))  # of quotients as well, which no symbol is called


def _joined(names: tuple[str, ...], product: tuple[str, ...]) -> tuple[str, ...]:
    """``names`` with a product that is among them as one symbol."""
    rest = list(names)
    for name in product:
        if name not in rest:
            return names
        rest.remove(name)
    return tuple(sorted([*rest, _product_name(product)]))


def shape_variables(names: Iterable[str]) -> dict[str, Var]:
    """Variables for symbols and quotients, bound by the shapes of a kernel's arguments."""
    return {name: tirx.Var(variable_name(name), "int64") for name in names}


def variable_name(name: str) -> str:
    """The name of a kernel's variable for a symbol or a quotient."""
    return re.sub(r"\W+", "_", name).strip("_")


def rebased(extents: Sequence[Extent]) -> OwnSymbols:
    """The symbols of a kernel whose operands have these extents."""
    told = {extent.symbol for extent in extents}
    needed = dict.fromkeys(name for extent in extents for names, _ in extent.terms for name in names)
    values: dict[str, Extent] = {}
    for name in dict.fromkeys(symbol for each in needed for symbol in sorted(symbols_of([each]))):
        if name in told:
            continue
        for extent in extents:
            if (value := extent.under(values).solved_for(name)) is not None:
                values = {other: known.under({name: value}) for other, known in values.items()}
                values[name] = value
                break
    own_names = dict(values)
    for name in needed:
        for extent in extents if quotient_parts(name) is not None else ():
            if (value := extent.solved_for(name)) is not None:
                names = Extent((((variable_name(name),), 1),))
                own_names[name] = value.under({**values, name: names})
                break
    values = own_names
    own = OwnSymbols(values)
    told = {own.of(extent).symbol for extent in extents}
    products = []
    for extent in extents:
        terms = own.of(extent).terms
        if len(terms) == 1 and terms[0][1] == 1 and not told & set(terms[0][0]) and len(terms[0][0]) > 1:
            products.append(terms[0][0])
    own = OwnSymbols(values, tuple(dict.fromkeys(products)))
    told = {own.of(extent).symbol for extent in extents}
    multiples: dict[str, int] = {}
    for extent in extents:
        (names, factor), *more = own.of(extent).terms or (((), 0),)
        if not more and factor > 1 and len(names) == 1 and names[0] not in told:
            if quotient_parts(names[0]) is None:
                multiples[names[0]] = min(factor, multiples.get(names[0], factor))
    return OwnSymbols(own.values, own.products, multiples)


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

    def told_at(self, sizes: Sizes) -> list[tuple[tuple[int, ...], str]]:
        """Shapes and dtypes at other sizes of the operands that only tell sizes."""
        return [
            (lifted([tuple(shape) for shape, _ in several], self.sizes, lambda e: e.at(sizes)), several[0][1])
            for several in zip(*self.told, strict=True)
        ]

    def shapes(self, variables: Mapping[str, Expr]) -> list[tuple[Any, ...]]:
        """Shapes of operands, of what only tells sizes, and of results, in order, as expressions of int64
        ``variables``."""
        told = self.told or ((),) * len(self.ops)
        each = [
            (*(o.shape for o in op.inputs), *(shape for shape, _ in more), *(o.shape for o in op.outputs))
            for op, more in zip(self.ops, told, strict=True)
        ]
        shapes = lifted(each, self.sizes, lambda extent: self._expression(extent, variables, "int64"))
        return [each[0][n] if n in self.bounded else shape for n, shape in enumerate(shapes)]

    def value(
        self,
        of: Callable[[Any], Any],
        variables: Mapping[str, Expr],
        kept: Callable[[Expr], Expr] = lambda expression: expression,
    ) -> Any:
        """``of(contract)`` as numbers and expressions of int32 ``variables``, each of which is ``kept``."""
        return lifted(
            [of(op) for op in self.ops],
            self.sizes,
            lambda extent: kept(self._expression(extent, variables, "int32")),
        )

    def _expression(self, extent: Extent, variables: Mapping[str, Expr], dtype: str) -> Expr:
        """A polynomial of the model's symbols as an expression of the kernel's own."""
        try:
            return self._own.of(extent).expression(variables, dtype)
        except Unfit:  # a multiple of 32 has quotients by 4 and by 8 that are multiples of one another
            with contextlib.suppress(Unfit):
                found = fit([extent.at(one) for one in self.sizes], self._own_sizes)
                if isinstance(found, Extent):
                    return found.expression(variables, dtype)
            raise

    @functools.cached_property
    def _own_sizes(self) -> list[dict[str, int]]:
        """Values of the kernel's own symbols at each of the sizes."""
        named = {name: extent for extent in self._extents if (name := self._own.of(extent).symbol)}
        return [{name: extent.at(one) for name, extent in named.items()} for one in self.sizes]


class RunTimeOp:
    """A contract whose attributes are expressions of int32 variables where they depend on the sizes."""

    def __init__(self, witnesses: Witnesses, variables: Mapping[str, Expr]):
        self._witnesses, self._variables = witnesses, variables

    def __getattr__(self, name: str) -> Any:
        return self._witnesses.value(lambda op: getattr(op, name), self._variables)
