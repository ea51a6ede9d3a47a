"""Softmax over the last axis -> a fused operator."""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, Var
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.relax_passes.rewriting.graph import Graph, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule, check_float32


class FuseSoftmax(Rule):
    """``relax.nn.softmax`` over the last axis -> ``ops.Softmax``."""

    name = "softmax_kernel"
    counted = False
    anchors = ("relax.nn.softmax",)

    def match(self, graph: Graph, var: Var) -> tuple[Softmax, list[Expr]] | None:
        call = graph.value(var)
        shape = shape_of(call.args[0])
        if int(call.attrs.axis) % len(shape) != len(shape) - 1:
            raise Miss(f"axis {int(call.attrs.axis)} of {len(shape)}, expected the last")
        check_float32(var)
        return Softmax(shape[:-1], shape[-1]), [call.args[0]]

    def rewrite(self, graph: Graph, var: Var, found: tuple[Softmax, list[Expr]]) -> None:
        op, operands = found
        graph.replace(var, graph.call_function(op.workload(), op.label, operands, var))
