"""Softmax over an axis, or its logarithm -> a fused operator."""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, Var
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.relax_passes.rewriting.fused import Claims
from hetero_tvm.relax_passes.rewriting.graph import Graph, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule, check_float32


class FuseSoftmax(Rule):
    """``relax.nn.softmax`` over the last axis -> ``ops.Softmax``; ``log_softmax``, and both over another
    axis, where the target ``claims`` a kernel for it."""

    name = "softmax_kernel"
    counted = False
    anchors = ("relax.nn.softmax", "relax.nn.log_softmax")

    def __init__(self, claims: Claims = lambda op: False):
        self._claims = claims

    def match(self, graph: Graph, var: Var) -> tuple[Softmax, list[Expr]] | None:
        call = graph.value(var)
        shape = shape_of(call.args[0])
        axis = int(call.attrs.axis) % len(shape)
        check_float32(var)
        log = graph.op_name(var) == "relax.nn.log_softmax"
        op = Softmax(shape[:axis], shape[axis], log=log, trail=shape[axis + 1 :])
        if op.trail and not self._claims(op):
            raise Miss(f"axis {axis} of {len(shape)}, expected the last")
        return (op, [call.args[0]]) if not op.log or self._claims(op) else None

    def rewrite(self, graph: Graph, var: Var, found: tuple[Softmax, list[Expr]]) -> None:
        op, operands = found
        graph.replace(var, graph.call_function(op.workload(), op.label, operands, var))
