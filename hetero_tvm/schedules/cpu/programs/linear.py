"""Nests in flat memory: each access is a base and a step per axis, and axes that run on become one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, Expr, TensorLoad, Var, tirx, tvm, tvm_ffi
from hetero_tvm.schedules.emit import Kernel, int32
from hetero_tvm.schedules.nests.nest import Axes, Nest, loads_of, offset

Views = Mapping[Buffer, Buffer]
"""Each buffer of a function -> the same memory as one axis."""


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
class LinearNest:
    """A nest whose accesses are linear, over as few axes as its accesses allow.

    Attributes
    ----------
    kept, reduced : extents of the axes of the result, and of those that are reduced; none is 1.
    term : what is stored, or combined.
    loads : loads of ``term`` and what they access; steps of ``kept`` axes, then of ``reduced`` ones.
    store : the access that writes.
    """

    kept: tuple[int, ...]
    reduced: tuple[int, ...]
    term: Expr
    loads: tuple[tuple[TensorLoad, Access], ...]
    store: Access

    def value(self, k: Kernel, views: Views, positions: Sequence[Expr]) -> Expr:
        """``term`` at one position per axis."""

        def load(node: TensorLoad) -> Expr:
            access = next(a for known, a in self.loads if _same(known, node))
            return k.load(views[access.buffer], [access.place(positions)])

        return tvm_ffi.structural_map(self.term, (TensorLoad, load), order="pre")


def linear_nest(nest: Nest, term: Expr) -> LinearNest | None:
    """``nest``, which computes ``term``, in flat memory; None where an access is not linear."""
    axes = (*nest.axes, *nest.reduced)
    if _used_outside_loads(term, {variable for variable, _ in axes}):
        return None
    nodes = [node for node, _ in loads_of(term)]
    found = [flat_access(node.source, node.indices, axes) for node in nodes]
    written = flat_access(nest.buffer, nest.indices, axes)
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
    )


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
