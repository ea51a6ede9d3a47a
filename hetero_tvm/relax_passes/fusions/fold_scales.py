"""Constant factors around a product with a constant weight go into the weight.

``(x @ W + b) * c`` becomes ``x @ (W * c) + b * c``, and ``(x * c) @ W`` becomes ``x @ (c * W)``, with c
one number or one per column, as layer scales (DINOv2) and scaled heads (T5) are written.  Attention has
taken its ``1 / sqrt(d)`` before this runs: there it costs nothing, and the weight stays as it is.  Every
weight is multiplied in float64 and rounds once, relative error 6e-8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.relax_passes.fusions.linear import constant_matrix, constant_of, linear_of
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


@dataclass
class _Found:
    scaled: Var
    factor: np.ndarray
    product: Var
    bias: Expr | None


class FoldOutputScales(Rule):
    """A factor on the columns of a product's result."""

    name = "fold_output_scales"
    counted = False
    anchors = ("relax.multiply", "relax.divide")

    def match(self, graph: Graph, var: Var) -> _Found | None:
        scaled = scaled_by(graph, var, -1)
        if scaled is None:
            return None
        y, factor = scaled
        linear = linear_of(graph, y)
        # Every binding on the way is changed, so nobody else may see it.
        if linear is None or any(graph.only_user(v) is None for v in linear.absorbed):
            return None
        if factor.size not in (1, linear.weight.shape[1]) or dtype_of(var) != "float32":
            return None
        product = linear.absorbed[-1]
        bias = next((v for v in linear.absorbed if graph.op_name(v) == "relax.add"), None)
        return _Found(y, factor, product, bias)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        call = graph.value(found.product)
        weight = constant_matrix(graph, call.args[1])
        scaled = constant((weight.astype("float64") * found.factor).astype("float32"))
        graph.replace(found.product, relax.op.matmul(call.args[0], scaled))
        if found.bias is not None:
            args = [
                arg
                if (array := array_of(graph.value(arg))) is None
                else relax.const((array.astype("float64") * found.factor.reshape(-1)).astype("float32"))
                for arg in graph.value(found.bias).args
            ]
            graph.replace(found.bias, relax.op.add(*args))
        graph.forward(var, found.scaled)


class FoldInputScales(Rule):
    """A factor on the columns of a product's left operand."""

    name = "fold_input_scales"
    counted = False
    anchors = ("relax.matmul",)

    def match(self, graph: Graph, var: Var) -> tuple[Expr, np.ndarray, Var] | None:
        x, w = graph.value(var).args
        weight = constant_matrix(graph, w)
        if weight is None or weight.dtype != np.float32 or graph.only_user(x) is None:
            return None
        scaled = scaled_by(graph, x, -1)
        if scaled is None or scaled[1].size not in (1, weight.shape[0]):
            return None
        base, factor = scaled
        return base, (weight.astype("float64") * factor.reshape(-1, 1)).astype("float32"), x

    def rewrite(self, graph: Graph, var: Var, found: tuple[Expr, np.ndarray, Var]) -> None:
        base, weight, x = found
        graph.replace(var, relax.op.matmul(base, constant(weight)), absorbs=[x])


def scaled_by(graph: Graph, expr: Expr, axis: int) -> tuple[Var, np.ndarray] | None:
    """``(x, c)`` with ``expr == x * c``, c finite, constant and no zero: one value, or one for each place of
    ``axis``, which counts from the end."""
    call = graph.call(expr, "relax.multiply", "relax.divide")
    if call is None:
        return None
    divided = call.op.name == "relax.divide"
    left, right = call.args
    for x, factors in ((left, right),) if divided else ((left, right), (right, left)):
        array = constant_of(graph, factors)
        if array is None or array.dtype != np.float32 or shape_of(x) != shape_of(expr) or not array.size:
            continue
        if array.size > 1 and (array.ndim < -axis or array.shape[axis] != array.size):
            continue
        if not isinstance(x, relax.Var) or not np.isfinite(array).all() or not array.all():
            continue
        factor = array.astype("float64").reshape(-1)
        return x, 1 / factor if divided else factor
    return None
