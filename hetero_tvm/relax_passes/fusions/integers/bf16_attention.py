"""Fused attention -> ``ops.Bf16Attention``: its two products in bfloat16.

The rule is part of ``--precision bf16`` and of the precisions of 8 bits, beside whose errors that of bfloat16
is small.  It comes after the fusions, and takes what they found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hetero_tvm.host.tvm import Call, Var
from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.integers.bf16_attention import Bf16Attention
from hetero_tvm.relax_passes.rewriting.fused import contract
from hetero_tvm.relax_passes.rewriting.graph import Graph
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule


@dataclass
class _Found:
    op: Bf16Attention
    call: Call


class RoundAttention(Rule):
    """Attention in bfloat16, wherever it is faster.

    Parameters
    ----------
    pays : whether the target has a kernel of bfloat16 that is faster than that of float32.
    kept : source nodes whose attention stays in float32.
    """

    name = "bf16_attention"
    anchors = ("relax.call_tir",)

    def __init__(self, pays: Callable[[Attention], bool], kept: frozenset[str] = frozenset()):
        self._pays, self._kept = pays, kept

    def match(self, graph: Graph, var: Var) -> _Found | None:
        call = graph.value(var)
        op = contract(graph.functions(), call)
        if type(op) is not Attention or op.dtype != "float32":
            return None
        if chosen := self._kept.intersection(graph.sources(var)):
            raise Miss(f"{min(chosen)} is kept in float32")
        if not self._pays(op):
            raise Miss("its float32 kernel is as fast")
        return _Found(Bf16Attention.of(op), call)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        operands = [*found.call.args[1].fields]
        graph.replace(var, graph.call_function(found.op.workload(), found.op.label, operands, var), [var])
