"""Constant factors around a convolution with constant filters go into the filters.

``(conv(x, W) + b) * c`` becomes ``conv(x, c * W) + c * b``, and ``conv(x * c, W)`` becomes ``conv(x, W * c)``
(the zeros around an image stay zeros), with c one number or one per channel: layer scales (Touvron et al.,
2021, "Going deeper with Image Transformers"), the gains of networks without normalisation (NFNet), batch
normalisation that a converter wrote out.  Filters are multiplied in float64 and round once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.relax_passes.fusions.convolutions.conv2d import (
    channel_vector,
    plain_filters,
    replace_by_biased,
    with_filters,
)
from hetero_tvm.relax_passes.fusions.fold_scales import scaled_by
from hetero_tvm.relax_passes.rewriting.graph import Graph, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule

_CHANNELS = -3
"""Axis of an image's channels."""


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
        scaled = scaled_by(graph, var, _CHANNELS) if len(shape_of(var)) == 4 else None
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
        product = with_filters(found.conv, found.weight)
        if found.bias is None:
            graph.replace(var, product, absorbs=found.absorbed)
        else:
            replace_by_biased(graph, var, product, found.bias, found.absorbed)


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
        while (scaled := scaled_by(graph, x, _CHANNELS)) is not None and graph.only_user(x) is not None:
            absorbed.append(x)
            x, factor = scaled
            wide = wide * np.broadcast_to(factor, shape_of(x)[1]).reshape(groups, 1, -1, 1, 1)
        if not absorbed:
            return None
        return x, _Scaled(conv, wide.reshape(weight.shape), None, absorbed)

    def rewrite(self, graph: Graph, var: Var, found: tuple[Expr, _Scaled]) -> None:
        x, scaled = found
        graph.replace(var, with_filters(scaled.conv, scaled.weight, x), absorbs=scaled.absorbed)
