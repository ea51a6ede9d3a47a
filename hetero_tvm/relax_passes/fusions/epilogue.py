"""Shared parts of the epilogue rules of products and convolutions."""

from __future__ import annotations

from dataclasses import dataclass

from hetero_tvm.host.tvm import Expr, Var
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.matmul import GATE, RESIDUAL
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


_STEPS = {"relax.add": RESIDUAL, "relax.multiply": GATE}


def joining_tensor(graph: Graph, user: Var, top: Var, gates: bool) -> tuple[str | None, Expr | None]:
    """The step that ``user`` is, and its operand: another tensor is added to ``top``, or with ``gates``
    multiplies it, that is computed, float32 and of the same shape; else None twice."""
    step = _STEPS.get(graph.op_name(user))
    if step is None or (step == GATE and not gates):
        return None, None
    other = other_operand(graph, user, top)
    if other.same_as(top) or array_of(graph.value(other)) is not None:
        return None, None
    fits = shape_of(other) == shape_of(top) and dtype_of(other) == "float32"
    return (step, other) if fits else (None, None)
