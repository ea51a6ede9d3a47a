"""Splits as slices, for targets whose kernels have one result."""

from __future__ import annotations

from typing import Any

from hetero_tvm.host.tvm import Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


class SplitAsSlices(Rule):
    """``split(x)`` -> a slice for each of its parts, so that every kernel has one result."""

    name = "split"
    counted = False
    anchors = ("relax.split",)

    def match(self, graph: Graph, var: Var) -> Any | None:
        users = graph.users(var)
        values = [None if user is None else graph.value(user) for user in users]
        if not all(isinstance(value, relax.TupleGetItem) for value in values):
            return None
        call = graph.value(var)
        axis = int(call.attrs.axis) % len(shape_of(call.args[0]))
        sizes = [int(field.shape[axis]) for field in var.ty.fields]
        return call.args[0], axis, sizes, [(u, v.index) for u, v in zip(users, values, strict=True)]

    def rewrite(self, graph: Graph, var: Var, found: Any) -> None:
        x, axis, sizes, users = found
        for user, n in users:
            begin = sum(sizes[:n])
            graph.replace(user, relax.op.strided_slice(x, [axis], [begin], [begin + sizes[n]]), [var])
