"""Splits as slices, for targets whose kernels have one result."""

from __future__ import annotations

from typing import NamedTuple

from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


class _Found(NamedTuple):
    x: Expr
    axis: int
    sizes: list[int]
    users: list[tuple[Var, int]]
    """Readers of the parts, each with the part's number."""


class SplitAsSlices(Rule):
    """``split(x)`` -> a slice for each of its parts, so that every kernel has one result."""

    name = "split"
    counted = False
    anchors = ("relax.split",)

    def match(self, graph: Graph, var: Var) -> _Found | None:
        users = graph.users(var)
        values = [None if user is None else graph.value(user) for user in users]
        if not all(isinstance(value, relax.TupleGetItem) for value in values):
            return None
        call = graph.value(var)
        axis = int(call.attrs.axis) % len(shape_of(call.args[0]))
        sizes = [int(field.shape[axis]) for field in var.ty.fields]
        readers = [(user, value.index) for user, value in zip(users, values, strict=True)]
        return _Found(call.args[0], axis, sizes, readers)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        x, axis, sizes, users = found
        for user, n in users:
            begin = sum(sizes[:n])
            graph.replace(user, relax.op.strided_slice(x, [axis], [begin], [begin + sizes[n]]), [var])
