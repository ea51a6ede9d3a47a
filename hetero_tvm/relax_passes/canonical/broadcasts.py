"""Broadcasts: those that the next operator does by itself go, those that are written otherwise are found."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, is_tensor, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


class DropBroadcasts(Rule):
    """``op(broadcast_to(x), y)`` -> ``op(x, y)`` where that has the same shape."""

    name = "drop_broadcasts"
    counted = False
    # fmt: off
    anchors = (
        "relax.add", "relax.subtract", "relax.multiply", "relax.divide", "relax.power", "relax.maximum",
        "relax.minimum", "relax.where", "relax.less", "relax.less_equal", "relax.greater",
        "relax.greater_equal", "relax.equal", "relax.not_equal", "relax.logical_and", "relax.logical_or",
    )
    # fmt: on

    def match(self, graph: Graph, var: Var) -> list[Expr] | None:
        args = list(graph.value(var).args)
        if not all(is_tensor(arg) for arg in args):
            return None
        changed = False
        for index, arg in enumerate(args):
            inner = graph.call(arg, "relax.broadcast_to")
            if inner is None:
                continue
            shapes = [shape_of(inner.args[0] if i == index else other) for i, other in enumerate(args)]
            if np.broadcast_shapes(*shapes) == shape_of(var):
                args[index], changed = inner.args[0], True
        return args if changed else None

    def rewrite(self, graph: Graph, var: Var, found: list[Expr]) -> None:
        graph.replace(var, relax.Call(graph.value(var).op, found, graph.value(var).attrs))


class _Tile(NamedTuple):
    x: Expr
    apart: list[int]
    """Shape of x with an axis of one element before each axis that is repeated."""
    repeated: list[int]


class TileAsBroadcast(Rule):
    """``tile(x)`` -> a broadcast along new axes, and a view of it.

    The place of an element in ``x`` is its place in the result modulo an extent: a division per element, and
    no vectors, where the extent is no constant.  A broadcast has neither.
    """

    name = "tile"
    counted = False
    anchors = ("relax.tile",)

    def match(self, graph: Graph, var: Var) -> _Tile | None:
        call = graph.value(var)
        repeats = [int(repeat) for repeat in call.attrs.repeats]
        shape = shape_of(call.args[0])
        rank = max(len(repeats), len(shape))
        repeats = [1] * (rank - len(repeats)) + repeats
        apart, repeated = [], []
        for extent, repeat in zip([1] * (rank - len(shape)) + list(shape), repeats, strict=True):
            apart += [1, extent] if repeat != 1 else [extent]
            repeated += [repeat, extent] if repeat != 1 else [extent]
        return _Tile(call.args[0], apart, repeated)

    def rewrite(self, graph: Graph, var: Var, found: _Tile) -> None:
        bind = graph.binder(var, [var])
        apart = bind(relax.op.reshape(found.x, found.apart), "apart")
        repeated = bind(relax.op.broadcast_to(apart, found.repeated), "repeated")
        graph.replace(var, relax.op.reshape(repeated, shape_of(var)))
