"""Borders around 8-bit images, of a zero point that is known at run time only."""

from __future__ import annotations

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of


def bordered(graph: Graph, x: Expr, zero: Expr, border: tuple[int, int, int, int], top: Var) -> Expr:
    """x [n, c, h, w] with rows and columns of its zero point around it, written before ``top``.

    ``border`` counts them: top, left, bottom, right.
    """
    before, left, after, right = border
    height, width = shape_of(x)[2:]
    outside = np.ones((1, 1, before + height + after, left + width + right), bool)
    outside[:, :, before : before + height, left : left + width] = False

    def insert(expr: Expr, name: str) -> Var:
        return graph.insert_before(top, expr, f"{top.name}#{name}", [top])

    value = insert(relax.op.reshape(zero, (1, 1, 1, 1)), "border_zero")
    value = insert(relax.op.astype(value, dtype_of(x)), "border_byte")
    wide = insert(relax.op.nn.pad(x, [0, 0, 0, 0, before, after, left, right]), "wide")
    return insert(relax.op.where(constant(outside), value, wide), "bordered")
