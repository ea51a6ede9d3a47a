"""Means over windows of 8-bit numbers as convolutions, for ``fusions/integers/``."""

from __future__ import annotations

import math

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Call, Var, relax
from hetero_tvm.ops.integers.quantized import OFFSET
from hetero_tvm.relax_passes.forms.conv1d import integers, paddings
from hetero_tvm.relax_passes.fusions.integers.moves import parameters_of
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule

_MOST_TAPS = 64
"""Pixels of a window beyond which the sums of another method would be shared."""


class QuantAverageAsConv2d(Rule):
    """``quantize(avg_pool2d(dequantize(x)))`` -> a depthwise ``conv2d`` whose filters are ones.

    Between two quantisers the mean would be one of floats, four times as large as what is read and written.
    Only windows that all count the same pixels are taken.
    """

    name = "quantized_average"
    counted = False
    anchors = ("relax.nn.avg_pool2d",)

    def match(self, graph: Graph, var: Var) -> tuple[Call, tuple[int, ...], list[int]] | None:
        call = graph.value(var)
        attrs, inner = call.attrs, graph.call(call.args[0], "relax.dequantize")
        if inner is None or parameters_of(graph, inner) is None or dtype_of(inner.args[0]) not in OFFSET:
            return None
        user = graph.only_user(var)
        if user is None or graph.op_name(user) != "relax.quantize" or 0 in shape_of(var):
            return None
        kernel, padding = tuple(integers(attrs.pool_size)), paddings(attrs.padding, 2)
        if str(attrs.layout) != "NCHW" or str(attrs.out_layout) != "NCHW" or math.prod(kernel) > _MOST_TAPS:
            return None
        if set(integers(attrs.dilation)) != {1} or (any(padding) and not bool(attrs.count_include_pad)):
            return None
        image, strides = shape_of(call.args[0])[2:], integers(attrs.strides)
        for axis in range(2):
            extent = image[axis] + padding[axis] + padding[2 + axis]
            if shape_of(var)[2 + axis] != (extent - kernel[axis]) // strides[axis] + 1:
                return None  # a window passes the padding, and counts less
        return call, kernel, padding

    def rewrite(self, graph: Graph, var: Var, found: tuple[Call, tuple[int, ...], list[int]]) -> None:
        call, kernel, padding = found
        channels = shape_of(var)[1]
        bind = graph.binder(var, [var])
        ones = constant(np.ones((channels, 1, *kernel), "int8"), "int8")
        share = relax.const(np.float32(1 / math.prod(kernel)))
        filters = bind(relax.op.dequantize(ones, share, relax.const(np.int8(0)), axis=0), "ones")
        mean = relax.op.nn.conv2d(
            call.args[0],
            filters,
            strides=tuple(integers(call.attrs.strides)),
            padding=tuple(padding),
            groups=channels,
        )
        graph.replace(var, mean)
