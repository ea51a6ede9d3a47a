"""A graph pass of this target: ``x + x`` is one multiplication."""

from __future__ import annotations

import numpy as np

from hetero_tvm.host.tvm import Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, same_value
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule


class Doubling(Rule):
    """``x + x`` -> ``2 * x``."""

    name = "doubling"
    anchors = ("relax.add",)

    def match(self, graph: Graph, var: Var) -> Var | None:
        left, right = graph.value(var).args
        if left.same_as(right):
            return left
        if same_value(graph, left, right):
            raise Miss("the operands are equal, and are not one tensor")
        return None

    def rewrite(self, graph: Graph, var: Var, found: Var) -> None:
        graph.replace(var, relax.op.multiply(found, relax.const(np.float32(2.0), "float32")))
