"""Convolutions of volumes as those of images, for targets that have a unit for those."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Call, Var, relax
from hetero_tvm.relax_passes.forms.conv1d import channel_bias, integers
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


class _Volume(NamedTuple):
    call: Call
    weight: np.ndarray
    top: Var
    bias: np.ndarray | None


class Conv3dAsConv2d(Rule):
    """``conv3d(x [N, C, D, H, W], w)`` -> a convolution of N x D' images, with the bias behind it.

    An image holds the channels of all slices that the filter's depth covers for one slice of the result, so
    that depth is summed up as channels are.  The input is copied as often as the filter is deep, which is
    little beside the products that follow; not so for depthwise convolutions, which stay what they are.
    """

    name = "conv3d"
    counted = False
    anchors = ("relax.nn.conv3d",)

    def match(self, graph: Graph, var: Var) -> _Volume | None:
        call = graph.value(var)
        weight = array_of(graph.value(call.args[1]))
        if weight is None or dtype_of(var) != "float32" or 0 in shape_of(var):
            return None
        if str(call.attrs.data_layout) != "NCDHW" or str(call.attrs.kernel_layout) != "OIDHW":
            return None
        if weight.shape[1] == 1 and int(call.attrs.groups) > 1:
            return None
        return _Volume(call, weight, *channel_bias(graph, var))

    def rewrite(self, graph: Graph, var: Var, found: _Volume) -> None:
        call, weight, top, bias = found
        attrs = call.attrs
        batch, channels, _, height, width = shape_of(call.args[0])
        filters, each, taps = weight.shape[:3]
        groups, depth = int(attrs.groups), shape_of(var)[2]
        strides, dilation = integers(attrs.strides), integers(attrs.dilation)
        padding = integers(attrs.padding)
        padding = padding if len(padding) == 6 else padding * (6 // len(padding))
        bind = graph.binder(top, [var])
        x = call.args[0]
        if padding[0] or padding[3]:
            x = bind(relax.op.nn.pad(x, [0, 0, 0, 0, padding[0], padding[3], 0, 0, 0, 0]), "deep")
        x = bind(relax.op.permute_dims(x, [0, 2, 1, 3, 4]), "slices")
        x = bind(
            relax.op.reshape(x, (batch, shape_of(x)[1], groups, channels // groups, height, width)), "groups"
        )
        slices = []
        for tap in range(taps):
            begin = tap * dilation[0]
            end = begin + (depth - 1) * strides[0] + 1
            slices.append(bind(relax.op.strided_slice(x, [1], [begin], [end], [strides[0]]), f"tap{tap}"))
        image = slices[0] if taps == 1 else bind(relax.op.concat(relax.Tuple(slices), axis=3), "taps")
        image = bind(relax.op.reshape(image, (batch * depth, taps * channels, height, width)), "images")
        flat = weight.transpose(0, 2, 1, 3, 4).reshape(filters, taps * each, *weight.shape[3:])
        y = bind(
            relax.op.nn.conv2d(
                image,
                constant(np.ascontiguousarray(flat)),
                strides=tuple(strides[1:]),
                padding=(padding[1], padding[2], padding[4], padding[5]),
                dilation=tuple(dilation[1:]),
                groups=groups,
            ),
            "conv2d",
        )
        if bias is not None:
            y = bind(relax.op.add(y, relax.const(bias.reshape(1, -1, 1, 1))), "bias")
        y = bind(relax.op.reshape(y, (batch, depth, filters, *shape_of(y)[2:])), "volume")
        graph.replace(top, relax.op.permute_dims(y, [0, 2, 1, 3, 4]), [var])
