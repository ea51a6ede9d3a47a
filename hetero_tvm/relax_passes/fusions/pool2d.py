"""Pooling as one fused operator, for targets that have a kernel of their own for it."""

from __future__ import annotations

from typing import Any

from hetero_tvm.relax_passes.rewriting.graph import Graph
from hetero_tvm.relax_passes.rewriting.rule import Rule
from hetero_tvm.relax_passes.storage.image_nodes import pool_of


class ClaimPool(Rule):
    """Maximum and average pooling, also global, in plain NCHW."""

    name = "pool"
    counted = False
    anchors = ("relax.nn.max_pool2d", "relax.nn.avg_pool2d", "relax.mean")

    def match(self, graph: Graph, var: Any) -> Any | None:
        return pool_of(graph, var)

    def rewrite(self, graph: Graph, var: Any, found: Any) -> None:
        op, x = found
        graph.replace(var, graph.call_function(op.workload(), op.label, [x], var))
