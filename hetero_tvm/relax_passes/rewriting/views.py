"""Strided views: chains of reshapes, transposes, slices and broadcasts as positions in their base tensor.

A view maps the indices of a tensor to positions in the flat memory of another.  Each dimension is a
list of *factors* ``(extent, stride)``, outermost first, so a dimension that was merged from two keeps
both strides: ``[B, Hkv, S, D]`` broadcast to ``[B, Hkv, G, S, D]`` and merged to ``[B, H, S, D]`` has
the head dimension ``((Hkv, S * D), (G, 0))``.  That is what lets a kernel read queries, keys and values
where they lie, whatever way the exporter took to split them into heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, scalar_of, shape_of

RESHAPES = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")
"""Operators that give a tensor another shape and move nothing."""

FREE_VIEWS = (*RESHAPES, "relax.split")
"""Operators that copy nothing (the parts of a split are read where they lie)."""

Factor = tuple[int, int]
Factors = tuple[Factor, ...]


def merge(factors: Sequence[Factor]) -> Factors:
    """The fewest factors that run through the same positions."""
    merged: list[Factor] = []
    for extent, stride in factors:
        if extent == 1:
            continue
        if merged and merged[-1][1] == extent * stride:
            merged[-1] = (merged[-1][0] * extent, stride)
        else:
            merged.append((extent, stride))
    return tuple(merged)


def refine(lists: Sequence[Sequence[Factor]]) -> list[list[Factor]] | None:
    """Cut factors so that all lists have the same extents; None when their borders do not fit."""
    rests = [[f for f in factors if f[0] != 1] for factors in lists]
    refined: list[list[Factor]] = [[] for _ in rests]
    while any(rests):
        if not all(rests):
            return None
        step = math.gcd(*(rest[0][0] for rest in rests))
        if step == 1:
            return None
        for rest, done in zip(rests, refined, strict=True):
            extent, stride = rest.pop(0)
            done.append((step, stride * (extent // step)))
            if extent != step:
                rest.insert(0, (extent // step, stride))
    return refined


def extent_of(factors: Sequence[Factor]) -> int:
    """Extent of the dimension that ``factors`` make up."""
    return math.prod(extent for extent, _ in factors)


@dataclass(frozen=True)
class View:
    """A tensor as positions in a base tensor: ``offset`` plus the strides of its dimensions.

    Parameters
    ----------
    dims : factors of each dimension, merged, without factors of extent 1.
    offset : position of the first element.
    """

    dims: tuple[Factors, ...]
    offset: int = 0

    @classmethod
    def whole(cls, shape: Sequence[int]) -> View:
        """A tensor of that shape as it lies in memory, row-major."""
        dims, stride = [], math.prod(shape)
        for extent in shape:
            stride //= max(extent, 1)
            dims.append(merge([(extent, stride)]))
        return cls(tuple(dims))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(extent_of(factors) for factors in self.dims)

    @property
    def is_whole(self) -> bool:
        """Whether the view runs through memory from the start, without gaps, in order."""
        return self == View.whole(self.shape)

    def stride(self, axis: int) -> int | None:
        """Stride of a dimension (0 for extent 1); None when it has several."""
        factors = self.dims[axis]
        return None if len(factors) > 1 else factors[0][1] if factors else 0

    # Each method below applies the operator of that name to the indices.
    def permute(self, axes: Sequence[int]) -> View:
        return View(tuple(self.dims[axis] for axis in axes), self.offset)

    def reshape(self, shape: Sequence[int]) -> View | None:
        rest = list(merge([factor for factors in self.dims for factor in factors]))
        dims = []
        for extent in shape:
            taken: list[Factor] = []
            while extent > 1:
                if not rest:
                    return None
                length, stride = rest.pop(0)
                if extent % length == 0:
                    taken.append((length, stride))
                    extent //= length
                elif length % extent == 0:
                    taken.append((extent, stride * (length // extent)))
                    rest.insert(0, (length // extent, stride))
                    extent = 1
                else:
                    return None
            dims.append(merge(taken))
        return View(tuple(dims), self.offset) if not rest else None

    def broadcast(self, shape: Sequence[int]) -> View:
        dims = [()] * (len(shape) - len(self.dims)) + list(self.dims)
        pairs = zip(dims, shape, strict=True)
        return View(
            tuple(
                merge([(extent, 0)]) if extent_of(factors) == 1 != extent else factors
                for factors, extent in pairs
            ),
            self.offset,
        )

    def slice(self, axis: int, start: int, count: int, step: int = 1) -> View | None:
        """View of ``count`` indices of one dimension from ``start``, ``step`` apart."""
        if step != 1:
            return self._strided(axis, start, count, step)
        found = _slice(self.dims[axis], start, count)
        return None if found is None else self._with(axis, *found)

    def _strided(self, axis: int, start: int, count: int, step: int) -> View | None:
        stride = self.stride(axis)
        if stride is None:
            return None
        return self._with(axis, merge([(count, stride * step)]), start * stride)

    def index(self, axis: int, position: int) -> View | None:
        """View at one index of a dimension, which disappears."""
        found = self.slice(axis, position, 1)
        return None if found is None else View((*found.dims[:axis], *found.dims[axis + 1 :]), found.offset)

    def repeat(self, axis: int, times: int) -> View:
        """View in which every index of a dimension stands ``times`` times in a row."""
        return self._with(axis, merge([*self.dims[axis], (times, 0)]), 0)

    def _with(self, axis: int, factors: Factors, further: int) -> View:
        return View((*self.dims[:axis], factors, *self.dims[axis + 1 :]), self.offset + further)


def _slice(factors: Factors, start: int, count: int) -> tuple[Factors, int] | None:
    if not factors:
        return (), 0
    (_, stride), inner = factors[0], factors[1:]
    size = extent_of(inner)
    if start % size == 0 and count % size == 0:
        return merge([(count // size, stride), *inner]), start // size * stride
    if start // size != (start + count - 1) // size:
        return None
    found = _slice(inner, start % size, count)
    return None if found is None else (found[0], found[1] + start // size * stride)


# ---- Relax ---------------------------------------------------------------------------------


def below(graph: Graph, expr: Expr) -> tuple[Expr, list[Var]] | None:
    """The operand of which ``expr`` is a view, and the bindings between, ``expr`` first.

    None for operators that are no views.
    """
    value = graph.value(expr)
    if isinstance(value, relax.TupleGetItem):
        split = graph.call(value.tuple_value, "relax.split")
        return None if split is None else (split.args[0], [expr, value.tuple_value])
    name = graph.op_name(expr)
    if name == "relax.astype":
        return (value.args[0], [expr]) if dtype_of(value.args[0]) == dtype_of(expr) else None
    return (value.args[0], [expr]) if name in _VIEWS else None


def through(graph: Graph, expr: Expr, view: View) -> View | None:
    """View of ``expr`` from ``view``, that of its operand (see :func:`below`)."""
    value = graph.value(expr)
    if isinstance(value, relax.TupleGetItem):
        split = graph.call(value.tuple_value, "relax.split")
        axis = int(split.attrs.axis) % len(view.dims)
        start = sum(shape_of_field(split, i)[axis] for i in range(value.index))
        return view.slice(axis, start, shape_of(expr)[axis])
    name = graph.op_name(expr)
    return view if name == "relax.astype" else _VIEWS[name](view, value, shape_of(expr))


def shape_of_field(split: Call, index: int) -> tuple[int, ...]:
    """Shape of one part of a ``split``."""
    return tuple(int(extent) for extent in split.ty.fields[index].shape)


def order_of(call: Call) -> list[int]:
    """Axes of a ``permute_dims``, from 0."""
    axes, rank = call.attrs.axes, len(shape_of(call.args[0]))
    return list(range(rank))[::-1] if axes is None else [int(axis) % rank for axis in axes]


def slices_of(call: Call) -> list[tuple[int, int, int]]:
    """Axis, first element and step of each slice of a ``strided_slice``, axes and elements from 0."""
    axes, begins, _, *strides = ([_number(v) for v in arg.fields] for arg in call.args[1:])
    steps = strides[0] if strides else [1] * len(axes)
    shape, found = shape_of(call.args[0]), []
    for axis, begin, step in zip(axes, begins, steps, strict=True):
        extent = shape[axis]
        found.append((axis % len(shape), min(max(begin + extent if begin < 0 else begin, 0), extent), step))
    return found


def _strided_slice(view: View, call: Call, shape: tuple[int, ...]) -> View | None:
    for axis, start, step in slices_of(call):
        if step < 1 or (view := view.slice(axis, start, shape[axis], step)) is None:
            return None
    return view


def _number(value: Expr) -> int:
    return int(getattr(value, "value", value))


def _take(view: View, call: Call, _shape: tuple[int, ...]) -> View | None:
    index = array_of(call.args[1])
    if index is None or index.ndim or call.attrs.axis is None:
        return None
    axis = int(call.attrs.axis) % len(view.dims)
    return view.index(axis, int(index) % view.shape[axis])


def _repeat(view: View, call: Call, shape: tuple[int, ...]) -> View | None:
    if call.attrs.axis is None:
        return None
    axis = int(call.attrs.axis) % len(view.dims)
    return view.repeat(axis, shape[axis] // max(view.shape[axis], 1))


_VIEWS = {
    "relax.reshape": lambda view, call, shape: view.reshape(shape),
    "relax.flatten": lambda view, call, shape: view.reshape(shape),
    "relax.expand_dims": lambda view, call, shape: view.reshape(shape),
    "relax.squeeze": lambda view, call, shape: view.reshape(shape),
    "relax.permute_dims": lambda view, call, shape: view.permute(order_of(call)),
    "relax.broadcast_to": lambda view, call, shape: view.broadcast(shape),
    "relax.strided_slice": _strided_slice,
    "relax.take": _take,
    "relax.repeat": _repeat,
}
"""Operators whose result is a view of their first operand: (view of it, call, shape) -> view."""


@dataclass(frozen=True)
class Place:
    """A reading of a tensor: ``factor`` times a view of ``base``, past the bindings ``skipped``."""

    base: Expr
    view: View
    skipped: tuple[Var, ...] = ()
    factor: float = 1.0


def places(graph: Graph, expr: Expr, *, scaled: bool = False) -> list[Place]:
    """Readings of ``expr`` as a view of what it is made from, nearest first (itself).

    With ``scaled``, products with a constant number are passed through as well.  Tensors with an extent
    of 0 are views of themselves only.
    """
    found = [Place(expr, View.whole(shape_of(expr)))]
    if 0 in shape_of(expr):
        return found
    chain: list[Var] = []
    skipped: list[Var] = []
    factor = 1.0
    while True:
        if scaled and (times := times_number(graph, expr)) is not None:
            base, factor = times[0], factor * times[1]
            skipped.append(expr)
        elif (step := below(graph, expr)) is not None:
            base = step[0]
            chain.append(expr)
            skipped += step[1]
        else:
            return found
        view: View | None = View.whole(shape_of(base))
        for link in reversed(chain):
            view = through(graph, link, view)
            if view is None:
                return found
        found.append(Place(base, view, tuple(skipped), factor))
        expr = base


def operand_place(graph: Graph, expr: Expr, lead: tuple[int, ...]) -> tuple[Place, tuple[int, ...]]:
    """The furthest tensor of which an operand is a view with one stride per axis; offset and strides."""
    matrix = shape_of(expr)[-2:]
    for place in reversed(places(graph, expr)):
        view = place.view.broadcast((*lead, *matrix))
        strides = tuple(view.stride(axis) for axis in range(len(lead) + 2))
        if None not in strides:
            return place, (view.offset, *strides)
    raise AssertionError("a tensor is a view of itself")


def times_number(graph: Graph, expr: Expr) -> tuple[Expr, float] | None:
    """``(x, factor)`` when ``expr`` is ``x`` times a constant number, whichever way it is written."""
    call = graph.call(expr, "relax.multiply", "relax.divide", "relax.negative")
    if call is None:
        return None
    if call.op.name == "relax.negative":
        return call.args[0], -1.0
    left, right = call.args
    factor = scalar_of(graph.value(right))
    if factor is None and call.op.name == "relax.multiply":
        factor, left = scalar_of(graph.value(left)), right
    if not factor or shape_of(left) != shape_of(expr):
        return None
    return left, factor if call.op.name == "relax.multiply" else 1.0 / factor


def furthest(graph: Graph, expr: Expr) -> Place:
    """Reading of ``expr`` as a view of the first tensor in its chain."""
    return places(graph, expr)[-1]
