"""Convolutions of volumes of 8-bit numbers as those of images, for ``fusions/integers/``."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.ops.integers.quantized import OFFSET
from hetero_tvm.relax_passes.forms.conv1d import integers, paddings
from hetero_tvm.relax_passes.forms.quantized.following import following
from hetero_tvm.relax_passes.fusions.integers.moves import parameters_of
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


class _Found(NamedTuple):
    call: Call
    x: Call
    """The dequantiser of the volume."""
    weight: Call
    """The dequantiser of the constant filters."""
    bias: np.ndarray | None
    chain: list[Var]
    """The convolution and what follows: bias, relu, quantiser."""


class QuantConv3dAsConv2d(Rule):
    """``conv3d`` of dequantised tensors, with bias, relu and quantiser -> a ``conv2d`` of N x D' images.

    An image holds the channels of all slices that the filter's depth covers: they are copied as bytes.
    """

    name = "quantized_conv3d"
    counted = False
    anchors = ("relax.nn.conv3d",)

    def match(self, graph: Graph, var: Var) -> _Found | None:
        call = graph.value(var)
        attrs = call.attrs
        if str(attrs.data_layout) != "NCDHW" or str(attrs.kernel_layout) != "OIDHW" or int(attrs.groups) > 1:
            return None
        x, weight = (graph.call(arg, "relax.dequantize") for arg in call.args)
        if x is None or weight is None or array_of(graph.value(weight.args[0])) is None:
            return None
        if parameters_of(graph, x) is None or dtype_of(x.args[0]) not in OFFSET or 0 in shape_of(var):
            return None
        if len(shape_of(weight.args[1])) and int(weight.attrs.axis) % 5:
            return None
        chain, bias = following(graph, var)
        return _Found(call, x, weight, bias, chain)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        call, x, weight, bias, chain = found
        top, padding = chain[-1], paddings(call.attrs.padding, 3)
        bind = graph.binder(top, [var])
        filters, each, taps, *kernel = shape_of(weight.args[0])
        numbers = array_of(graph.value(weight.args[0])).transpose(0, 2, 1, 3, 4)
        flat = constant(np.ascontiguousarray(numbers.reshape(filters, taps * each, *kernel)))
        batch, _, depth, *plane = shape_of(var)
        images = self._windows(graph, bind, found, (padding[0], padding[3]), (taps, depth))
        strides, dilation = (integers(getattr(call.attrs, name))[1:] for name in ("strides", "dilation"))
        y = bind(
            relax.op.nn.conv2d(
                bind(relax.op.dequantize(images, *x.args[1:], axis=0), "images"),
                bind(relax.op.dequantize(flat, *weight.args[1:], axis=0), "filters"),
                strides=tuple(strides),
                padding=(padding[1], padding[2], padding[4], padding[5]),
                dilation=tuple(dilation),
            ),
            "conv2d",
        )
        if bias is not None:
            y = bind(relax.op.add(y, constant(bias.reshape(1, filters, 1, 1))), "bias")
        for step in chain[1:]:
            value = graph.value(step)
            if value.op.name == "relax.nn.relu":
                y = bind(relax.op.nn.relu(y), "relu")
            elif value.op.name == "relax.quantize":
                y = bind(relax.op.quantize(y, *value.args[1:], axis=0, out_dtype=dtype_of(step)), "bytes")
        apart = bind(relax.op.reshape(y, (batch, depth, filters, *plane)), "slices")
        graph.replace(top, relax.op.permute_dims(apart, [0, 2, 1, 3, 4]), chain)

    @staticmethod
    def _windows(graph: Graph, bind, found: _Found, around: tuple[int, int], counts: tuple[int, int]) -> Expr:
        """[N x D', taps x C, H, W] bytes: the slices that each slice of the result sees."""
        call, x = found.call, found.x
        taps, depth = counts
        step, apart = (integers(getattr(call.attrs, name))[0] for name in ("strides", "dilation"))
        slices = bind(relax.op.permute_dims(x.args[0], [0, 2, 1, 3, 4]), "slices")
        batch, _, channels, *plane = shape_of(slices)
        dtype, _, zero = parameters_of(graph, x)
        parts = [
            constant(np.full((batch, count, channels, *plane), zero, dtype)) if count else None
            for count in around
        ]
        if any(part is not None for part in parts):
            whole = [part for part in (parts[0], slices, parts[1]) if part is not None]
            slices = bind(relax.op.concat(whole, 1), "padded")
        if taps > 1 or step > 1:
            seen = [
                bind(
                    relax.op.strided_slice(
                        slices, [1], [tap * apart], [tap * apart + (depth - 1) * step + 1], [step]
                    ),
                    f"tap{tap}",
                )
                for tap in range(taps)
            ]
            slices = bind(relax.op.concat(seen, 2), "windows") if taps > 1 else seen[0]
        return bind(relax.op.reshape(slices, (batch * depth, taps * channels, *plane)), "images")
