"""Constant factors around a convolution with constant filters go into the filters.

``(conv(x, W) + b) * c`` becomes ``conv(x, c * W) + c * b``, and ``conv(x * c, W)`` becomes ``conv(x, W * c)``
(the zeros around an image stay zeros), with c one number or one per channel: layer scales (Touvron et al.,
2021, "Going deeper with Image Transformers"), the gains of networks without normalisation (NFNet), batch
normalisation that a converter wrote out.  Filters are multiplied in float64 and round once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.relax_passes.fusions.convolutions.conv2d import channel_vector, constant_of, plain_filters
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


class _Scaled(NamedTuple):
    conv: Call
    weight: np.ndarray
    bias: np.ndarray | None
    absorbed: list[Var]


class FoldConvOutputScales(Rule):
    """A factor on the channels of a convolution's result."""

    name = "fold_conv_output_scales"
    counted = False
    anchors = ("relax.multiply", "relax.divide")

    def match(self, graph: Graph, var: Var) -> _Scaled | None:
        scaled = _scaled(graph, var)
        if scaled is None or graph.only_user(scaled[0]) is None:
            return None
        y, factor = scaled
        bias, conv_var, absorbed = None, y, [y]
        if graph.op_name(y) == "relax.add":
            bias, conv_var = channel_vector(graph, y)
            if bias is None or not isinstance(conv_var, relax.Var) or graph.only_user(conv_var) is None:
                return None
            absorbed.append(conv_var)
        weight = plain_filters(graph, conv_var)
        if weight is None or shape_of(conv_var) != shape_of(var):
            return None
        factor = np.broadcast_to(factor, weight.shape[:1])
        bias = None if bias is None else bias * factor
        return _Scaled(graph.value(conv_var), weight * factor[:, None, None, None], bias, absorbed)

    def rewrite(self, graph: Graph, var: Var, found: _Scaled) -> None:
        product = _with_filters(found)
        if found.bias is None:
            graph.replace(var, product, absorbs=found.absorbed)
            return
        product = graph.insert_before(var, product, f"{var.name}#conv", found.absorbed)
        bias = relax.const(found.bias.astype("float32").reshape(1, -1, 1, 1))
        graph.replace(var, relax.op.add(product, bias), absorbs=found.absorbed)


class FoldConvInputScales(Rule):
    """A factor on the channels of the image that a convolution reads, which nobody else does."""

    name = "fold_conv_input_scales"
    counted = False
    anchors = ("relax.nn.conv2d",)

    def match(self, graph: Graph, var: Var) -> tuple[Expr, _Scaled] | None:
        conv, weight = graph.value(var), plain_filters(graph, var)
        if weight is None:
            return None
        x, absorbed = conv.args[0], []
        groups = int(conv.attrs.groups)
        wide = weight.astype("float64").reshape(groups, -1, *weight.shape[1:])
        while (scaled := _scaled(graph, x)) is not None and graph.only_user(x) is not None:
            absorbed.append(x)
            x, factor = scaled
            wide = wide * np.broadcast_to(factor, shape_of(x)[1]).reshape(groups, 1, -1, 1, 1)
        if not absorbed:
            return None
        return x, _Scaled(conv, wide.reshape(weight.shape), None, absorbed)

    def rewrite(self, graph: Graph, var: Var, found: tuple[Expr, _Scaled]) -> None:
        x, scaled = found
        graph.replace(var, _with_filters(scaled, x), absorbs=scaled.absorbed)


def _with_filters(found: _Scaled, x: Expr | None = None) -> Call:
    conv = found.conv
    weight = constant(found.weight.astype("float32"))
    return relax.Call(conv.op, [conv.args[0] if x is None else x, weight], conv.attrs)


def _scaled(graph: Graph, expr: Expr) -> tuple[Var, np.ndarray] | None:
    """``(x, c)`` with ``expr == x * c`` for images, c finite and constant: one value, or one by channel."""
    call = graph.call(expr, "relax.multiply", "relax.divide")
    if call is None or dtype_of(expr) != "float32" or len(shape_of(expr)) != 4:
        return None
    divided = call.op.name == "relax.divide"
    left, right = call.args
    for x, factors in ((left, right),) if divided else ((left, right), (right, left)):
        array = constant_of(graph, factors)
        if array is None or not isinstance(x, relax.Var) or shape_of(x) != shape_of(expr) or not array.size:
            continue
        if array.size > 1 and (array.ndim < 3 or array.shape[-3] != array.size):
            continue
        factor = array.astype("float64").reshape(-1)
        if np.isfinite(factor).all() and factor.all():
            return x, 1 / factor if divided else factor
    return None
