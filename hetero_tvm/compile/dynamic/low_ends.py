"""The low end of ranges: sizes at which a model is another one than at those that it is derived from.

Kernels for all sizes are derived from large ones.  At small ones an index may lie outside, a reflection reach
further than its operand, a slice be cut short, a window not fit: the kernels would read, and write, what is
not theirs.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hetero_tvm.compile.dynamic.choices import Choices
from hetero_tvm.compile.dynamic.quotients import extents_of
from hetero_tvm.compile.dynamic.size_forms import misfits
from hetero_tvm.errors import HeteroTVMError, ShapeError
from hetero_tvm.frontend import ImportedModel, source_names
from hetero_tvm.frontend.ranges import branches, steps
from hetero_tvm.frontend.signature import Symbol
from hetero_tvm.host.tvm import Expr, Var, relax, tvm
from hetero_tvm.schedules.extents import Extent, Sizes, Unfit, completed
from hetero_tvm.schedules.fitting import fit

Fitted = Sequence["int | Extent"]
_COMPARED = ("bool", "int32", "int64", "float32", "float64")
_FEW = 64
"""Elements of constants that are compared: what follows from sizes is a number, or some."""
# fmt: off
_MOVING = frozenset("relax." + name for name in (
    "astype", "broadcast_to", "concat", "expand_dims", "flatten", "nn.pad", "permute_dims", "reshape",
    "split", "squeeze", "strided_slice", "take", "tile",
))
# fmt: on
"""Operators that may do nothing at some sizes; others compute something else there."""
_SHARES = (0.01, 0.03, 0.07, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Shares of a range at which branches are compared."""
_MOST_CORNERED = 8
"""Symbols of which all combinations of ends are tried."""
_MOST_MISFITS = 16
"""Sizes, at which a number is not of its form, that the model is imported at."""


def with_low_ends(model: ImportedModel) -> ImportedModel:
    """The model with open sizes, as it came where it is one and the same at the least sizes of its ranges.

    Ranges that nobody gave begin at the least sizes that are like the others.

    Raises
    ------
    ShapeError : sizes of a range that was given are special; says where it may begin.
    """
    opened = model.open
    assert opened is not None
    try:
        why = _Judge(model)
    except Unfit:  # the lifting says which extent has no form
        return model
    problem = why(_lows(opened.symbols))
    if problem is None:
        why.refuse_others(opened.symbols)
        return model
    found = _narrowed(opened.symbols, why)
    if found is None:
        return model  # no small size tells: the lifting, and the check at both ends, have the word
    symbols, changed = found, {s.name for s, f in zip(opened.symbols, found, strict=True) if s != f}
    if changed <= opened.decided:
        why.refuse_others(symbols)
        return dataclasses.replace(model, open=dataclasses.replace(opened, symbols=symbols))
    at = ", ".join(f"{name} = {size}" for name, size in _lows(opened.symbols).items())
    raise ShapeError(
        f"{model.name} does something else at the least sizes of its range ({at}) than at others.",
        problems=[problem],
        hint=f"give the ranges as {', '.join(map(str, symbols))}",
    )


def _lows(symbols: Sequence[Symbol]) -> dict[str, int]:
    """The least sizes that hold anything."""
    return {s.name: max(s.low, s.step) for s in symbols}


def _corners(symbols: Sequence[Symbol]) -> Iterator[dict[str, int]]:
    """Sizes at which each symbol is at an end of its range, where a difference of sizes is least."""
    lows, highs = _lows(symbols), {s.name: s.high for s in symbols}
    for corner in itertools.product(*((lows[s.name], s.high) for s in symbols[:_MOST_CORNERED])):
        yield {**highs, **dict(zip(highs, corner, strict=False))}


def _between(symbols: Sequence[Symbol]) -> Iterator[dict[str, int]]:
    """Sizes in the ranges: of all symbols the same share of the way, few at first, then of each one alone."""
    highs = {s.name: s.high for s in symbols}
    for share in _SHARES:
        yield {s.name: s.nearest(s.low + round(share * (s.high - s.low))) for s in symbols}
    for symbol in symbols if len(symbols) > 1 else ():
        for share in _SHARES:
            size = symbol.nearest(symbol.low + round(share * (symbol.high - symbol.low)))
            yield {**highs, symbol.name: size}


class _Judge:
    """Reason why sizes are special, or None."""

    def __init__(self, model: ImportedModel):
        assert model.open is not None
        self._model, self._at = model, model.open.at
        self._quotients = [name for name in model.open.sizes[0] if name not in _names(model.open.symbols)]
        several, sizes = (model, *model.open.others), model.open.sizes

        def fitted(values: Callable[[ImportedModel], list[int]]) -> list[int | Extent]:
            columns = list(map(values, several))
            if len(set(map(len, columns))) > 1:
                raise Unfit("other steps")
            return [fit(column, sizes) for column in zip(*columns, strict=True)]

        self._extents, self._results = fitted(extents_of), fitted(_results)
        self._windows, cuts = fitted(_windows), fitted(_cuts)
        self._cuts = list(zip(cuts[::2], cuts[1::2], strict=True))
        self._choices, self._steps = Choices(model), steps(model)
        self._branches, self._counted, constants = (
            branches(model),
            _counted(model),
            list(map(_constants, several)),
        )
        alike = len(set(map(len, constants))) == 1
        self._constants = [
            _form(several, sizes) for several in (zip(*constants, strict=True) if alike else ())
        ]

    def refuse_others(self, symbols: Sequence[Symbol]) -> None:
        """Refuse ranges among whose sizes the model is another one, as far as comparisons of sizes tell.

        Raises
        ------
        ShapeError : they do; names a size, and the node of an If.
        """
        for sizes in _corners(symbols):
            if (problem := self._beyond(completed(sizes, self._quotients))) is not None:
                raise self._refusal(sizes, problem, {})
        for sizes, ends in self._choices.sizes(symbols):
            if (problem := self(sizes)) is not None:
                raise self._refusal(sizes, problem, ends)
        for sizes in itertools.islice(misfits(self._model, symbols), _MOST_MISFITS):
            problem = self(sizes)
            if problem is None and self._steps != steps(self._at(sizes)):
                problem = "a number that it computes of its sizes is not what other sizes make it"
            if problem is not None:
                raise self._refusal(sizes, problem, {})
        for sizes in () if self._choices.known else _between(symbols):
            try:
                found = branches(self._at(sizes))
            except HeteroTVMError:  # the lifting, and the check, have the word
                continue
            for node, branch in self._branches.items():
                if found.get(node, branch) != branch:
                    raise self._refusal(sizes, _other_branch(node), {})

    def _refusal(self, sizes: Sizes, problem: str, ends: Mapping[str, tuple[int, int]]) -> ShapeError:
        at = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        alike = ", ".join(f"{name} = {low}..{high}" for name, (low, high) in ends.items())
        return ShapeError(
            f"{self._model.name} does something else at {at} than at the ends of its range.",
            problems=[problem],
            hint="give ranges of which all sizes decide alike, one library each"
            + (f"; sizes like this one lie in {alike}" if alike else ""),
        )

    def _beyond(self, at: Sizes) -> str | None:
        """Problem of a part that is larger than its whole at these sizes; None where each fits."""
        for n, (part, whole) in enumerate(self._cuts):
            if _value(part, at) > _value(whole, at):
                return self._cut_by(n)
        return None

    def _cut_by(self, number: int) -> str:
        """Problem of a part that is larger than its whole, with the name of the node."""
        pairs = 0
        for var, call in _calls(self._model):
            pairs += len(_parts(var, call))
            if number < pairs:
                if call.op.name == "relax.strided_slice":
                    return f"a slice is longer than what it is a part of, at {source_names(var)!r}"
                return f"indices have more rows than the data that they lie in, at {source_names(var)!r}"
        return ""

    def __call__(self, sizes: dict[str, int]) -> str | None:
        at = completed(sizes, self._quotients)
        if any(_value(extent, at) < 0 for extent in self._extents):
            return "something has fewer than 0 elements"
        if any(_value(extent, at) < 1 for extent in self._windows):
            return "a window of a convolution or a pool does not fit"
        if (problem := self._beyond(at)) is not None:
            return problem
        try:
            one = self._at(sizes)
        except HeteroTVMError as error:
            return error.message
        for node, branch in self._branches.items():
            if branches(one).get(node, branch) != branch:
                return _other_branch(node)
        # Where it takes other steps (a reshape that does nothing at 1), its results alone can be compared.
        same = steps(one) == self._steps and len(extents_of(one)) == len(self._extents)
        there = _counted(one)
        if other := sorted({*(there - self._counted), *(self._counted - there)} - _MOVING):
            return f"it computes otherwise: {', '.join(other)}"
        wanted = self._extents if same else self._results
        found = extents_of(one) if same else _results(one)
        if len(found) != len(wanted):
            return "its results have other dimensions"
        for extent, there in zip(wanted, found, strict=True):
            if _value(extent, at) != there:
                return f"a tensor has {there} elements along an axis, where other sizes make it {extent}"
        constants = _constants(one)
        if not same or len(constants) != len(self._constants):
            return None
        for form, here in zip(self._constants, constants, strict=True):
            known = _form_at(form, at)
            if known is not None and here is not None and not _is_same(known, here):
                return f"a constant is {here.tolist()}, where other sizes make it {known.tolist()}"
        return None


def _other_branch(node: str) -> str:
    return f"node {node!r} (If) takes its other branch"


def _narrowed(symbols: tuple[Symbol, ...], why: _Judge) -> tuple[Symbol, ...] | None:
    """The ranges from the least sizes on that are not special; None where none of them is found."""

    def raised(by: int, among: Sequence[Symbol] = symbols) -> tuple[Symbol, ...]:
        lows = (min(max(s.low, s.step) + by * s.step, s.high) for s in among)
        return tuple(dataclasses.replace(s, low=low) for s, low in zip(among, lows, strict=True))

    most = max((s.high - s.low) // s.step for s in symbols)
    special, fine = 0, 1
    while why(_lows(raised(fine))) is not None:
        special, fine = fine, 2 * fine
        if special >= most:
            return None
    while fine - special > 1:
        middle = (special + fine) // 2
        special, fine = (special, middle) if why(_lows(raised(middle))) is None else (middle, fine)
    found = raised(fine)
    for n, symbol in enumerate(symbols):
        fewer = (*found[:n], symbol, *found[n + 1 :])
        if fewer != found and why(_lows(fewer)) is None:
            found = fewer
    return found


def _names(symbols: Sequence[Symbol]) -> set[str]:
    return {s.name for s in symbols}


def _value(extent: int | Extent, at: Sizes) -> int:
    return extent.at(at) if isinstance(extent, Extent) else extent


def _results(model: ImportedModel) -> list[int]:
    """Extents of the results, each behind its number of dimensions."""
    return [n for spec in model.signature.outputs for n in (len(spec.shape), *map(int, spec.shape))]


def _cuts(model: ImportedModel) -> list[int]:
    """Extents of parts and of their wholes, in turn."""
    return [n for var, call in _calls(model) for pair in _parts(var, call) for n in pair]


def _parts(var: Var, call: Any) -> list[tuple[int, int]]:
    """Extents of what a slice gives and takes; of indices of elements and their data, but for their axis."""
    if call.op.name == "relax.strided_slice":
        return list(zip(_shape(var), _shape(call.args[0]), strict=True))
    if call.op.name in ("relax.gather_elements", "relax.scatter_elements"):
        pairs = list(zip(_shape(call.args[1]), _shape(call.args[0]), strict=True))
        del pairs[int(call.attrs.axis)]
        return pairs
    return []


def _constants(model: ImportedModel) -> list[np.ndarray | None]:
    """Constants in the order in which they are read, None for those of many elements; where slices begin."""
    found: list[np.ndarray | None] = []
    for _, call in _calls(model):
        for value in call.args:
            if isinstance(value, tvm.ir.GenericConst):
                few = math.prod(_shape(value)) <= _FEW and str(value.ty.dtype) in _COMPARED
                found.append(value.value.numpy() if few else None)
        if call.op.name == "relax.strided_slice":
            found.append(np.array([int(place.value) for place in call.args[2].fields]))
    return found


def _form(several: Sequence[np.ndarray | None], sizes: Sequence[Sizes]) -> np.ndarray | None:
    """Value of a constant at all sizes, whole numbers as polynomials of them; None where it is not known."""
    first, *others = several
    if first is None or all(_is_same(first, other) for other in others):
        return first
    if any(other is None or other.shape != first.shape for other in others):
        return None
    if first.dtype.kind not in "if" or any((each != np.rint(each)).any() for each in several):
        return None
    try:
        forms = [fit(list(map(int, each)), sizes) for each in zip(*map(np.ravel, several), strict=True)]
    except Unfit:
        return None
    found = np.empty(len(forms), object)
    found[:] = forms
    return found.reshape(first.shape)


def _form_at(form: np.ndarray | None, at: Sizes) -> np.ndarray | None:
    if form is None or form.dtype != object:
        return form
    return np.array([_value(extent, at) for extent in form.ravel()], float).reshape(form.shape)


def _is_same(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    if one is None or other is None:
        return False
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _counted(model: ImportedModel) -> Counter[str]:
    """Number of calls by operator, of those that an input leads to: others are folded where small."""
    depending = set(model.module["main"].params)
    calls = {var for var, _ in _calls(model)}
    counted: Counter[str] = Counter()
    for block in model.module["main"].body.blocks:
        for binding in block.bindings:
            if depending.isdisjoint(relax.analysis.free_vars(binding.value)):
                continue
            depending.add(binding.var)
            if binding.var in calls:
                counted[binding.value.op.name] += 1
    return counted


def _windows(model: ImportedModel) -> list[int]:
    """Extents of what convolutions and pools give."""
    named = [(var, call.op.name) for var, call in _calls(model)]
    windows = (
        var for var, name in named if name.startswith("relax.nn.") and ("conv" in name or "pool" in name)
    )
    return [n for var in windows for n in _shape(var)]


def _calls(model: ImportedModel) -> Iterator[tuple[Var, Any]]:
    """Bindings that call operators, with their calls."""
    for block in model.module["main"].body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, tvm.ir.Call) and isinstance(binding.value.op, tvm.ir.Op):
                yield binding.var, binding.value


def _shape(expr: Expr) -> tuple[int, ...]:
    shape = getattr(expr.ty, "shape", None)
    return tuple(map(int, shape.values)) if isinstance(shape, relax.ShapeExpr) else ()
