"""Convolutions in other forms as plain two-dimensional ones, for targets that have a unit for those."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.forms.conv_transpose import ConvTransposeAsPhases
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


def _numbers(values: Any) -> list[int]:
    return [int(v) for v in values]


class Conv1dAsConv2d(Rule):
    """``conv1d(x [N, C, W], w)`` -> a convolution of images with one row, with the bias behind it."""

    name = "conv1d"
    counted = False
    anchors = ("relax.nn.conv1d",)

    def match(self, graph: Graph, var: Any) -> Any | None:
        call = graph.value(var)
        attrs = call.attrs
        if array_of(graph.value(call.args[1])) is None or dtype_of(var) != "float32":
            return None
        if str(attrs.data_layout) != "NCW" or str(attrs.kernel_layout) != "OIW":
            return None
        top, bias = var, None
        user = graph.only_user(var)
        if user is not None and graph.op_name(user) == "relax.add":
            for arg in graph.value(user).args:
                array = array_of(graph.value(arg))
                if array is not None and array.shape == (1, shape_of(var)[1], 1):
                    top, bias = user, array
        return call, top, bias

    def rewrite(self, graph: Graph, var: Any, found: Any) -> None:
        call, top, bias = found
        attrs, weight = call.attrs, array_of(graph.value(call.args[1]))
        batch, channels, width = shape_of(call.args[0])
        before = (*_numbers(attrs.padding), *_numbers(attrs.padding))[:2]

        def bind(value: Any, name: str) -> Any:
            return graph.insert_before(top, value, f"{top.name}#{name}", [var])

        image = bind(relax.op.reshape(call.args[0], (batch, channels, 1, width)), "image")
        y = bind(
            relax.op.nn.conv2d(
                image, relax.const(np.ascontiguousarray(weight[:, :, None, :])),
                strides=(1, *_numbers(attrs.strides)), padding=(0, before[0], 0, before[1]),
                dilation=(1, *_numbers(attrs.dilation)), groups=int(attrs.groups),
            ), "conv2d",
        )  # fmt: skip
        if bias is not None:
            y = bind(relax.op.add(y, relax.const(bias[:, :, None, :])), "bias")
        graph.replace(top, relax.op.reshape(y, shape_of(top)), [var])


class ConvTransposeAsConv2d(Rule):
    """``conv2d_transpose(x, w)`` -> the convolution, with w turned round, of x with zeros between pixels.

    For filters that reach no further than a stride, and for groups, where it costs little that the
    zeros are multiplied; :class:`ConvTransposeAsPhases` takes the others, and results that are cut.
    """

    name = "conv_transpose"
    counted = False
    anchors = ("relax.nn.conv2d_transpose",)

    def match(self, graph: Graph, var: Any) -> Any | None:
        call = graph.value(var)
        attrs, weight = call.attrs, array_of(graph.value(call.args[1]))
        if weight is None or dtype_of(var) != "float32":
            return None
        if str(attrs.data_layout) != "NCHW" or str(attrs.kernel_layout) != "IOHW":
            return None
        groups = int(attrs.groups)
        reaches = (k > s for k, s in zip(weight.shape[2:], _numbers(attrs.strides), strict=True))
        if groups == 1 and any(reaches):
            return None
        padding = _numbers(attrs.padding)
        padding = padding * (4 // len(padding))
        strides, dilation, extra = (
            _numbers(v) for v in (attrs.strides, attrs.dilation, attrs.output_padding)
        )
        reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        # The zeros behind the last pixel are there already.
        pads = [
            *(reach[i] - padding[i] for i in (0, 1)),
            *(reach[i] - padding[2 + i] + extra[i] - (strides[i] - 1) for i in (0, 1)),
        ]
        return (call, weight, groups, strides, dilation, pads) if min(pads) >= 0 else None

    def rewrite(self, graph: Graph, var: Any, found: Any) -> None:
        call, weight, groups, (down, across), dilation, pads = found
        x = call.args[0]
        batch, channels, height, width = shape_of(x)

        def bind(value: Any, name: str) -> Any:
            return graph.insert_before(var, value, f"{var.name}#{name}", [var])

        if (down, across) != (1, 1):
            apart = bind(relax.op.reshape(x, (batch, channels, height, 1, width, 1)), "pixels")
            widths = (0,) * 7 + (down - 1, 0, 0, 0, across - 1)
            apart = bind(relax.op.nn.pad(apart, widths, "constant", 0.0), "zeros")
            x = bind(relax.op.reshape(apart, (batch, channels, height * down, width * across)), "stuffed")
        by_group = weight.reshape(groups, -1, *weight.shape[1:]).swapaxes(1, 2)[..., ::-1, ::-1]
        turned = np.ascontiguousarray(by_group.reshape(-1, *by_group.shape[2:]))
        value = relax.op.nn.conv2d(
            x, relax.const(turned), padding=tuple(pads), dilation=tuple(dilation), groups=groups
        )
        graph.replace(var, value)


FORMS = (Conv1dAsConv2d(), ConvTransposeAsConv2d(), ConvTransposeAsPhases())
"""Before the fusions of convolutions."""
