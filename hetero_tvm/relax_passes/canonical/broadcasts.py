"""Broadcasts that the next operator does by itself are not written out."""

from __future__ import annotations

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
