"""Nests in flat memory: each access is a base and a step per axis, and axes that run on become one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, Expr, TensorLoad, Var, tirx, tvm, tvm_ffi
from hetero_tvm.schedules.emit import Kernel, int32
from hetero_tvm.schedules.nests.nest import Axes, Nest, loads_of, offset, substitute

Views = Mapping[Buffer, Buffer]
"""Each buffer of a function -> the same memory as one axis; truth values as bytes."""


@dataclass(frozen=True)
class Access:
    """Elements of a buffer that a nest reads or writes: ``base`` plus a step per axis."""

    buffer: Buffer
    base: int
    steps: tuple[int, ...]

    def place(self, positions: Sequence[Expr]) -> Expr:
        """Flat index at one position per axis."""
        place = int32(self.base)
        for step, position in zip(self.steps, positions, strict=True):
            if step:
                place = place + (position if step == 1 else position * step)
        return place


@dataclass(frozen=True)
class Tail:
    """Steps for each result of a nest before it is stored.

    Attributes
    ----------
    value : what is stored, over the axes of the nest.
    result : variable of ``value`` that stands for the result.
    buffer, indices : where it is stored.
    """

    value: Expr
    result: Var
    buffer: Buffer
    indices: tuple[Expr, ...]


@dataclass(frozen=True)
class LinearNest:
    """A nest whose accesses are linear, over as few axes as its accesses allow.

    Attributes
    ----------
    kept, reduced : extents of the axes of the result, and of those that are reduced; none is 1.
    term : what is stored, or combined.
    loads : loads of ``term`` and what they access; steps of ``kept`` axes, then of ``reduced`` ones.
    store : the access that writes.
    tail : what is done to each result before; its loads are among ``loads``.
    """

    kept: tuple[int, ...]
    reduced: tuple[int, ...]
    term: Expr
    loads: tuple[tuple[TensorLoad, Access], ...]
    store: Access
    tail: Tail | None = None

    def value(
        self, k: Kernel, views: Views, positions: Sequence[Expr], held: Mapping[Access, Expr] | None = None
    ) -> Expr:
        """``term`` at one position per axis; ``held`` are elements that need no load."""
        return self._at(self.term, k, views, positions, held or {})

    def result(self, k: Kernel, views: Views, positions: Sequence[Expr], result: Expr) -> Expr:
        """Value that is stored for a result of the reduced axes."""
        if self.tail is None:
            return result
        value = self._at(self.tail.value, k, views, positions, {})
        variable = self.tail.result
        return tvm_ffi.structural_map(value, (tvm.ir.Var, lambda v: result if v.same_as(variable) else v))

    def _at(
        self,
        value: Expr,
        k: Kernel,
        views: Views,
        positions: Sequence[Expr],
        held: Mapping[Access, Expr],
    ) -> Expr:
        def load(node: TensorLoad) -> Expr:
            access = next((a for known, a in self.loads if _same(known, node)), None)
            if access is None:
                return node  # one of these, below a conversion
            value = (
                held[access] if access in held else k.load(views[access.buffer], [access.place(positions)])
            )
            return value.astype("bool") if is_truth(access.buffer) else value

        return tvm_ffi.structural_map(value, (TensorLoad, load), order="pre")


def linear_nest(nest: Nest, term: Expr, tail: Tail | None = None) -> LinearNest | None:
    """``nest``, which computes ``term``, in flat memory; None where an access is not linear."""
    axes = (*nest.axes, *nest.reduced)
    values = [term] if tail is None else [term, tail.value]
    variables = {variable for variable, _ in axes}
    if any(_used_outside_loads(value, variables) for value in values):
        return None
    loads = [load for value in values for load in loads_of(value)]
    if any(guarded for _, guarded in loads):
        return None
    nodes = [node for node, _ in loads]
    where = nest if tail is None else tail
    sources = [node.source for node in nodes]
    if any(source.same_as(nest.buffer) or source.same_as(where.buffer) for source in sources):
        return None  # what is computed depends on the order of the loops
    if any(bits_of(buffer) % 8 for buffer in (where.buffer, *sources)):
        return None
    found = [flat_access(node.source, node.indices, axes) for node in nodes]
    written = flat_access(where.buffer, where.indices, axes)
    if written is None or any(access is None for access in found):
        return None
    every = [*found, written]
    count = len(nest.axes)
    sizes = [extent for _, extent in axes]
    # The widest access says in which order memory is walked.
    main = max(every, key=lambda a: sum(1 for s, e in zip(a.steps, sizes, strict=True) if s and e > 1))
    main = written if not nest.reduced else main
    kept = _merged(range(count), sizes, every, main)
    reduced = _merged(range(count, len(axes)), sizes, every, main)
    steps = [tuple(axis[1][n] for axis in (*kept, *reduced)) for n in range(len(every))]
    accesses = [Access(a.buffer, a.base, s) for a, s in zip(every, steps, strict=True)]
    return LinearNest(
        tuple(extent for extent, _ in kept),
        tuple(extent for extent, _ in reduced),
        term,
        tuple(zip(nodes, accesses[:-1], strict=True)),
        accesses[-1],
        tail,
    )


def tail_of(nest: Nest, after: Nest) -> Tail | None:
    """``after`` as the tail of ``nest``; None where it is more than one value of each result."""
    loads = [node for node, _ in loads_of(after.value) if node.source.same_as(nest.buffer)]
    if after.reduced or after.size != nest.size or not loads:
        return None
    first = loads[0]
    if not all(tvm_ffi.structural_equal(list(node.indices), list(first.indices)) for node in loads):
        return None
    places: dict[Var, Expr] = {v: tirx.const(0, str(v.ty.dtype)) for v, e in after.axes if e == 1}
    wide = [variable for variable, extent in after.axes if extent > 1]
    for own, index in zip(nest.indices, first.indices, strict=True):
        if isinstance(index, tirx.Var) and index in wide:
            wide.remove(index)
            places[index] = own
        elif not isinstance(index, tirx.Var | tirx.IntImm):
            return None
    if wide:
        return None
    result = tirx.Var("result", str(nest.buffer.dtype))

    def load(node: TensorLoad) -> Expr:
        return result if node.source.same_as(nest.buffer) else node

    value = substitute(tvm_ffi.structural_map(after.value, (TensorLoad, load), order="pre"), places)
    indices = tuple(substitute(index, places) for index in after.indices)
    return Tail(value, result, after.buffer, indices)


def flat_access(buffer: Buffer, indices: Sequence[Expr], axes: Axes) -> Access | None:
    """The access at ``indices``; None where it is not linear in all axes."""
    variables = [variable for variable, _ in axes]
    place = offset(buffer, indices)
    if not variables:
        place = tvm.sym.Analyzer().simplify(place)
        return Access(buffer, int(place), ()) if isinstance(place, tirx.IntImm) else None
    found = tvm.sym.detect_linear_equation(place, variables)
    found = [tvm.sym.Analyzer().simplify(value) for value in found]
    if len(found) != len(axes) + 1 or not all(isinstance(value, tirx.IntImm) for value in found):
        return None
    return Access(buffer, int(found[-1]), tuple(int(value) for value in found[:-1]))


def _merged(
    chosen: range, sizes: Sequence[int], accesses: Sequence[Access], main: Access
) -> list[tuple[int, list[int]]]:
    """Axes as (extent, step of each access), in the order of ``main``, joined where all accesses run on."""
    axes = [(sizes[n], [a.steps[n] for a in accesses]) for n in chosen if sizes[n] > 1]
    position = next(n for n, a in enumerate(accesses) if a is main)
    axes.sort(key=lambda axis: -abs(axis[1][position]))
    merged: list[tuple[int, list[int]]] = []
    for extent, steps in axes:
        if merged and all(o == extent * i for o, i in zip(merged[-1][1], steps, strict=True)):
            merged[-1] = (merged[-1][0] * extent, steps)
        else:
            merged.append((extent, steps))
    return merged


def _used_outside_loads(expression: Expr, variables: set[Var]) -> bool:
    """Whether an axis is used other than as an index."""
    without = tvm_ffi.structural_map(
        expression, (TensorLoad, lambda node: tirx.const(0, str(node.ty.dtype))), order="pre"
    )
    return any(variable in variables for variable in tirx.analysis.undefined_vars(without))


def is_truth(buffer: Buffer) -> bool:
    """Whether a buffer holds truth values, which are bytes in memory and bits in a vector register."""
    return str(buffer.dtype) == "bool"


def bits_of(buffer: Buffer) -> int:
    """Bits of an element in memory."""
    return 8 if is_truth(buffer) else tvm.DataType(str(buffer.dtype)).bits


def stored(value: Expr) -> Expr:
    """``value`` as it lies in memory."""
    return value.astype("uint8") if str(value.ty.dtype) == "bool" else value


def _same(a: TensorLoad, b: TensorLoad) -> bool:
    return a.same_as(b) or (a.source.same_as(b.source) and tvm_ffi.structural_equal(a, b))


def split_index(index: Expr, extents: Sequence[int]) -> list[Expr]:
    """The position on each axis of a flat index."""
    positions: list[Expr] = []
    for number, extent in enumerate(reversed(extents)):
        last = number == len(extents) - 1
        positions.append(index if last else tirx.floormod(index, int32(extent)))
        index = index if last else tirx.floordiv(index, int32(extent))
    return positions[::-1]
