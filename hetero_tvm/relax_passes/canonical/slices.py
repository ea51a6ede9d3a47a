"""Lookups at constant, evenly spaced places become slices, and views behind slices move before them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule
from hetero_tvm.relax_passes.rewriting.views import RESHAPES, slices_of


class _Found(NamedTuple):
    x: Var
    axis: int
    begin: int
    end: int
    step: int


class SliceOfTake(Rule):
    """``take(x, [a, a + s, a + 2s, ...])`` -> ``strided_slice(x)``, or x itself when nothing is left out.

    The same of ``gather_nd`` with places [N, 1], a lookup along the first axis.
    """

    name = "slice_of_take"
    counted = False
    anchors = ("relax.take", "relax.gather_nd")

    def match(self, graph: Graph, var: Var) -> _Found | None:
        call = graph.value(var)
        x, places = call.args[0], array_of(graph.value(call.args[1]))
        is_take = graph.op_name(var) == "relax.take"
        along = call.attrs.axis if is_take else int(call.attrs.batch_dims)
        if places is None or along is None or (not is_take and (along or places.shape[-1:] != (1,))):
            return None
        places = places.astype(np.int64) if is_take else places[..., 0].astype(np.int64)
        if places.ndim != 1 or not places.size:
            return None
        shape = shape_of(x)
        axis = int(along) % len(shape)
        if is_take and str(call.attrs.mode) == "wrap":
            places = np.mod(places, shape[axis])
        step = int(places[1] - places[0]) if places.size > 1 else 1
        inside = 0 <= places.min() and places.max() < shape[axis]
        if not inside or step < 1 or (np.diff(places) != step).any() or not isinstance(x, relax.Var):
            return None
        return _Found(x, axis, int(places[0]), int(places[-1]) + 1, step)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        x, axis, begin, end, step = found
        if shape_of(x) == shape_of(var):
            graph.forward(var, x)
        else:
            graph.replace(var, relax.op.strided_slice(x, [axis], [begin], [end], [step]))


class _Part(NamedTuple):
    """A part of a concatenation: so many elements of a tensor along the axis."""

    x: Expr
    begin: int
    end: int


class _Joined(NamedTuple):
    axis: int
    parts: list[_Part]
    slices: list[Expr]
    """Parts, as they were, that are slices."""


class JoinSlices(Rule):
    """``concat(x[a:b], x[b:c], y)`` -> ``concat(x[a:c], y)``, or x where all of it comes back together: a
    net that splits an image and keeps all parts beside what it computes from one of them (CSP, YOLO's C2f).
    """

    name = "join_slices"
    counted = False
    anchors = ("relax.concat",)

    def match(self, graph: Graph, var: Var) -> _Joined | None:
        call = graph.value(var)
        parts = graph.fields(call.args[0])
        if call.attrs.axis is None or not shape_of(var):
            return None
        axis, joined = int(call.attrs.axis) % len(shape_of(var)), list[_Part]()
        for part in (_slice_along(graph, part, axis) for part in parts):
            before = joined[-1] if joined else None
            if before is not None and before.x.same_as(part.x) and before.end == part.begin:
                joined[-1] = _Part(part.x, before.begin, part.end)
            else:
                joined.append(part)
        slices = [part for part in parts if graph.call(part, "relax.strided_slice") is not None]
        return _Joined(axis, joined, slices) if len(joined) < len(parts) else None

    def rewrite(self, graph: Graph, var: Var, found: _Joined) -> None:
        axis = found.axis

        def piece(part: _Part) -> Expr:
            if (part.begin, part.end) == (0, shape_of(part.x)[axis]):
                return part.x
            return relax.op.strided_slice(part.x, [axis], [part.begin], [part.end], [1])

        pieces = [piece(part) for part in found.parts]
        if len(pieces) > 1:
            parts = [
                graph.insert_before(var, x, f"{var.name}#part") if isinstance(x, relax.Call) else x
                for x in pieces
            ]
            graph.replace(var, relax.op.concat(parts, axis), found.slices)
        elif isinstance(pieces[0], relax.Call):
            graph.replace(var, pieces[0], found.slices)
        else:
            graph.forward(var, pieces[0])


def _slice_along(graph: Graph, part: Expr, axis: int) -> _Part:
    """Slice along the axis alone that a part of a concatenation is; all of the part where it is none."""
    cut = graph.call(part, "relax.strided_slice")
    slices = slices_of(cut) if cut is not None else []
    if len(slices) != 1 or slices[0][0] != axis or slices[0][2] != 1:
        return _Part(part, 0, shape_of(part)[axis])
    begin = slices[0][1]
    return _Part(cut.args[0], begin, begin + shape_of(part)[axis])


class _Pieces(NamedTuple):
    x: Expr
    shape: list[int]
    """Shape of x with the cut axis in pieces."""
    axis: int
    first: int
    count: int


class SliceOfPieces(Rule):
    """``reshape(strided_slice(x))`` that cuts the sliced axis into pieces -> ``strided_slice(reshape(x))``
    of whole pieces, for concatenations: one kernel copies slices and concatenates them, and no view may lie
    between (windows that overlap, as of local attention).

    It runs after the fusions, which read slices where they lie.
    """

    name = "slice_of_pieces"
    counted = False
    anchors = RESHAPES

    def match(self, graph: Graph, var: Var) -> _Pieces | None:
        cut = graph.call(graph.value(var).args[0], "relax.strided_slice")
        readers = graph.users(var)
        if cut is None or not readers or any(graph.op_name(user) != "relax.concat" for user in readers):
            return None
        slices = slices_of(cut)
        if len(slices) != 1 or slices[0][2] != 1:
            return None
        axis, begin, _ = slices[0]
        whole, part, shape = list(shape_of(cut.args[0])), list(shape_of(cut)), list(shape_of(var))
        pieces = shape[axis : len(shape) - (len(whole) - axis - 1)]
        piece = math.prod(pieces[1:])
        if len(pieces) < 2 or shape[:axis] != part[:axis] or math.prod(pieces) != part[axis] or not piece:
            return None
        if shape[axis + len(pieces) :] != part[axis + 1 :] or begin % piece or whole[axis] % piece:
            return None
        in_pieces = [*whole[:axis], whole[axis] // piece, *pieces[1:], *whole[axis + 1 :]]
        return _Pieces(cut.args[0], in_pieces, axis, begin // piece, pieces[0])

    def rewrite(self, graph: Graph, var: Var, found: _Pieces) -> None:
        in_pieces = graph.insert_before(var, relax.op.reshape(found.x, found.shape), f"{var.name}#pieces")
        end = found.first + found.count
        graph.replace(var, relax.op.strided_slice(in_pieces, [found.axis], [found.first], [end], [1]))
