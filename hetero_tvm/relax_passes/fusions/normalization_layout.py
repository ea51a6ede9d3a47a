"""Norms that read and write tensors as they lie, instead of transposed copies.

Two rules, both only where the target has such a kernel:

* ``norm_axis``: a transposition that brings an axis to the end, the norm, and the transposition back
  (channels of an image) -> a norm over that axis.
* ``norm_rows``: a norm of rows that are a view of another tensor (the heads of a packed projection,
  transposed or not) -> a norm that reads them there.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.relax_passes.rewriting.fused import Claims, contract
from hetero_tvm.relax_passes.rewriting.graph import Graph, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule
from hetero_tvm.relax_passes.rewriting.views import FREE_VIEWS, order_of, places


@dataclass
class _Found:
    """``top`` becomes ``op`` of ``x``."""

    op: Normalization
    x: Expr
    top: Var
    absorbed: list[Var]


class _NormLayout(Rule):
    """A norm that takes in the moves before and behind it."""

    counted = False
    anchors = ("relax.call_tir",)

    def __init__(self, claims: Claims):
        self._claims = claims

    def match(self, graph: Graph, var: Var) -> _Found | None:
        op = contract(graph.functions(), graph.value(var))
        if not isinstance(op, Normalization) or op.special:
            return None
        found = self._found(graph, var, op)
        return found if found is not None and self._claims(found.op) else None

    @abstractmethod
    def _found(self, graph: Graph, var: Var, op: Normalization) -> _Found | None:
        """The norm ``op`` at ``var`` with its moves; None when there are none."""

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        _, *vectors = graph.value(var).args[1].fields
        call = graph.call_function(found.op.workload(), found.op.label, [found.x, *vectors], found.top)
        graph.replace(found.top, call, absorbs=found.absorbed)


class NormAxis(_NormLayout):
    """``transpose(norm(transpose(x)))`` where the second undoes the first -> a norm over an inner axis."""

    name = "norm_axis"

    def _found(self, graph: Graph, var: Var, op: Normalization) -> _Found | None:
        moved = graph.value(var).args[1].fields[0]
        before, back = graph.call(moved, "relax.permute_dims"), graph.only_user(var)
        after = graph.call(back, "relax.permute_dims") if back is not None else None
        if before is None or after is None:
            return None
        order = order_of(before)
        axis = order[-1]
        if order[:-1] != sorted(order[:-1]) or [order[i] for i in order_of(after)] != sorted(order):
            return None
        shape = shape_of(before.args[0])
        inner = replace(op, lead=shape[:axis], trail=shape[axis + 1 :])
        return _Found(inner, before.args[0], back, [moved, var])


class NormRows(_NormLayout):
    """Rows that transpositions, slices or repeats would copy, read where they are."""

    name = "norm_rows"

    def _found(self, graph: Graph, var: Var, op: Normalization) -> _Found | None:
        x = graph.value(var).args[1].fields[0]
        for place in reversed(places(graph, x)):
            if all(graph.op_name(v) in FREE_VIEWS for v in place.skipped):
                return None  # nearer ones save no copy either
            view = place.view
            strides = [view.stride(axis) for axis in range(len(op.lead))]
            unit = op.n == 1 or view.stride(len(op.lead)) == 1
            if unit and None not in strides and isinstance(place.base, relax.Var):
                read = replace(op, source=shape_of(place.base), place=(view.offset, *strides))
                return _Found(read, place.base, var, list(place.skipped))
        return None
