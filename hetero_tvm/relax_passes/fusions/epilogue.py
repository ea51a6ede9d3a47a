"""Shared parts of the epilogue rules of products and convolutions."""

from __future__ import annotations

from dataclasses import dataclass

from hetero_tvm.host.tvm import Expr, Var
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of


@dataclass
class Found:
    """A chain of bindings that one operator replaces.

    Parameters
    ----------
    op, operands : the fused operator and what it is called with.
    top : the last binding of the chain, whose value the call becomes.
    absorbed : the bindings before it.
    """

    op: FusedOp
    operands: list[Expr]
    top: Var
    absorbed: list[Var]

    def replace(self, graph: Graph) -> None:
        """Bind ``top`` to the call of the fused operator."""
        call = graph.call_function(self.op.workload(), self.op.label, self.operands, self.top)
        graph.replace(self.top, call, absorbs=self.absorbed)


def other_operand(graph: Graph, user: Var, top: Var) -> Expr:
    """The operand of the binary operation ``user`` that is not ``top`` (``top`` itself when both are)."""
    left, right = graph.value(user).args
    return right if left.same_as(top) else left


def residual(graph: Graph, user: Var, top: Var) -> Expr | None:
    """Residual that the addition ``user`` adds to ``top``: float32, computed, of its shape; else None."""
    other = other_operand(graph, user, top)
    if other.same_as(top) or array_of(graph.value(other)) is not None:
        return None
    return other if shape_of(other) == shape_of(top) and dtype_of(other) == "float32" else None
