"""Borders around 8-bit images: of a zero point, which stands for 0."""

from __future__ import annotations

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.relax_passes.fusions.convolutions.conv2d import with_padding
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, scalar_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


class FoldByteBorders(Rule):
    """``conv2d(dequantize(pad(x, zero point)))`` -> ``conv2d(dequantize(x))`` with more padding."""

    name = "conv_byte_borders"
    counted = False
    anchors = ("relax.nn.conv2d",)

    def match(self, graph: Graph, var: Var) -> tuple[Expr, Call, Call] | None:
        conv = graph.value(var)
        real = graph.call(conv.args[0], "relax.dequantize")
        pad = None if real is None else graph.call(real.args[0], "relax.nn.pad")
        if pad is None or str(conv.attrs.data_layout) != "NCHW" or any(list(pad.attrs.pad_width)[:4]):
            return None
        is_zero = scalar_of(graph.value(real.args[2])) == float(pad.attrs.pad_value)
        return (pad.args[0], real, pad) if is_zero and str(pad.attrs.pad_mode) == "constant" else None

    def rewrite(self, graph: Graph, var: Var, found: tuple[Expr, Call, Call]) -> None:
        x, real, pad = found
        _, _, _, _, top, bottom, left, right = (int(width) for width in pad.attrs.pad_width)
        inner = relax.op.dequantize(x, *real.args[1:], axis=0, out_dtype=str(real.attrs.out_dtype))
        inner = graph.insert_before(var, inner, f"{var.name}#inner", [var])
        graph.replace(var, with_padding(graph.value(var), inner, (top, left, bottom, right)))


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
