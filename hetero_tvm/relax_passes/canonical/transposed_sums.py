"""Sums of transposed tensors become transposed sums: residuals stay the way products write them."""

from __future__ import annotations

from typing import NamedTuple

from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule
from hetero_tvm.relax_passes.rewriting.views import order_of


class _Found(NamedTuple):
    order: list[int]
    """Axes of the transposition."""
    bases: list[Expr | None]
    """Operands before the transposition; None for one that is not transposed."""


class SumTransposed(Rule):
    """``transpose(a) + transpose(b)`` -> ``transpose(a + b)``; in a chain of sums also ``x + transpose(b)``.

    Blocks of an image net whose products work on rows of channels (ConvNeXt) give back an image for their
    residual alone.  The first sum of such a chain transposes its image once; all others then add rows, as
    the epilogue of a product.
    """

    name = "sum_transposed"
    counted = False
    anchors = ("relax.add",)

    def match(self, graph: Graph, var: Var) -> _Found | None:
        operands = list(graph.value(var).args)
        if any(shape_of(operand) != shape_of(var) for operand in operands):
            return None
        calls = [graph.call(operand, "relax.permute_dims") for operand in operands]
        orders = [order_of(call) for call in calls if call is not None]
        if not orders or any(order != orders[0] for order in orders) or not _saves(graph, operands, calls):
            return None
        if None in calls and not self._goes_on(graph, var, orders[0]):
            return None
        return _Found(orders[0], [None if call is None else call.args[0] for call in calls])

    def _goes_on(self, graph: Graph, var: Var, order: list[int]) -> bool:
        """Whether the sum is an operand of another one, beside a tensor that is transposed alike."""
        for user in graph.users(var):
            call = None if user is None else graph.call(user, "relax.add")
            for operand in call.args if call is not None else ():
                moved = graph.call(operand, "relax.permute_dims")
                if moved is not None and order_of(moved) == order and not operand.same_as(var):
                    return True
        return False

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        order, operands = found.order, graph.value(var).args
        back = [order.index(axis) for axis in range(len(order))]
        terms = [
            graph.insert_before(var, relax.op.permute_dims(operand, back), f"{var.name}#rows")
            if base is None
            else base
            for operand, base in zip(operands, found.bases, strict=True)
        ]
        moved = [o for o, base in zip(operands, found.bases, strict=True) if base is not None]
        total = graph.insert_before(var, relax.op.add(*terms), f"{var.name}#sum", [var])
        graph.replace(var, relax.op.permute_dims(total, order), absorbs=moved)


def _saves(graph: Graph, operands: list[Expr], calls: list[Call | None]) -> bool:
    """Whether a transposition vanishes: one that only this sum reads."""
    moved = [operand for operand, call in zip(operands, calls, strict=True) if call is not None]
    return any(isinstance(operand, relax.Var) and graph.only_user(operand) is not None for operand in moved)
