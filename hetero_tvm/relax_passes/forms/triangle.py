"""Triangles of matrices as selections by a constant mask."""

from __future__ import annotations

import numpy as np

from hetero_tvm.host.tvm import Expr, Var, relax, tvm
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


class TriangleAsMask(Rule):
    """``tril(x, k)`` and ``triu(x, k)`` -> ``where(constant mask, x, 0)``."""

    name = "triangle"
    counted = False
    anchors = ("relax.tril", "relax.triu")

    def match(self, graph: Graph, var: Var) -> tuple[Expr, int] | None:
        call = graph.value(var)
        diagonal = getattr(call.args[1], "value", call.args[1])
        return (call.args[0], int(diagonal)) if isinstance(diagonal, int | tvm.tirx.IntImm) else None

    def rewrite(self, graph: Graph, var: Var, found: tuple[Expr, int]) -> None:
        x, diagonal = found
        cut = np.tril if graph.op_name(var) == "relax.tril" else np.triu
        mask = cut(np.ones(shape_of(x)[-2:], np.bool_), diagonal)
        graph.replace(var, relax.op.where(relax.const(mask), x, relax.const(0, dtype_of(var))))
