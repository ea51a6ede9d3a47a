"""Convolutions of rows as those of images with one row, for targets that have a unit for those; of single
pixels as products."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule

_ACTIVATIONS = ("relax.nn.relu", "relax.nn.silu", "relax.sigmoid", "relax.tanh")
"""Activations of gates: behind a view of the rows they would be computed again for each pixel of an image."""
_LARGE = 2**18
"""Weights from which their way from memory is the time of a single row: products read them as they lie."""


def channel_bias(graph: Graph, var: Var) -> tuple[Var, np.ndarray | None]:
    """The last binding of ``var`` plus a constant per channel, and the constant [channels]; ``var`` and None
    where no such addition follows."""
    user, shape = graph.only_user(var), shape_of(var)
    for arg in graph.value(user).args if user is not None and graph.op_name(user) == "relax.add" else ():
        array = array_of(graph.value(arg))
        if array is not None and array.shape == (1, shape[1], *[1] * (len(shape) - 2)):
            return user, array.reshape(-1)
    return var, None


def integers(values: Iterable[Any]) -> list[int]:
    """A sequence of TVM's integers as Python's."""
    return [int(v) for v in values]


def paddings(values: Iterable[Any], axes: int) -> list[int]:
    """Padding before each of ``axes``, then after each, of one number for all, for both sides, or each."""
    given = integers(values)
    return given * (2 * axes // len(given))


def unpadded(graph: Graph, x: Expr) -> tuple[Expr, list[int]]:
    """The tensor [N, C, ...] that zeros were put around, and how many: before each axis, then after each."""
    pad, axes = graph.call(x, "relax.nn.pad"), len(shape_of(x)) - 2
    if pad is None or str(pad.attrs.pad_mode) != "constant" or float(pad.attrs.pad_value) != 0.0:
        return x, [0] * (2 * axes)
    widths = integers(pad.attrs.pad_width)
    if any(widths[:4]) or min(widths) < 0:
        return x, [0] * (2 * axes)
    return pad.args[0], [*widths[4::2], *widths[5::2]]


class Conv1dAsConv2d(Rule):
    """``conv1d(x [N, C, W], w)`` -> a convolution of images with one row, with the bias behind it; zeros that
    were put around the rows are its padding where it has no strides.

    ``w`` is constant, or with ``computed`` any other.
    """

    name = "conv1d"
    counted = False
    anchors = ("relax.nn.conv1d",)

    def __init__(self, computed: bool = False):
        self.computed = computed

    def match(self, graph: Graph, var: Var) -> tuple[Call, Var, np.ndarray | None] | None:
        call = graph.value(var)
        attrs = call.attrs
        if dtype_of(var) != "float32":
            return None
        if array_of(graph.value(call.args[1])) is None and not self.computed:
            return None
        if str(attrs.data_layout) != "NCW" or str(attrs.kernel_layout) != "OIW":
            return None
        return call, *channel_bias(graph, var)

    def rewrite(self, graph: Graph, var: Var, found: tuple[Call, Var, np.ndarray | None]) -> None:
        call, top, bias = found
        attrs, weight = call.attrs, array_of(graph.value(call.args[1]))
        # In front of strides rows are often filled up to whole steps, by other numbers at other sizes.
        x, more = unpadded(graph, call.args[0]) if integers(attrs.strides) == [1] else (call.args[0], [0, 0])
        batch, channels, width = shape_of(x)
        before, after = (own + zeros for own, zeros in zip(paddings(attrs.padding, 1), more, strict=True))
        bind = graph.binder(top, [var])
        if weight is None:
            filters, depth, taps = shape_of(call.args[1])
            kernel = bind(relax.op.reshape(call.args[1], (filters, depth, 1, taps)), "kernel")
        else:
            kernel = constant(np.ascontiguousarray(weight[:, :, None, :]))
        image = bind(relax.op.reshape(x, (batch, channels, 1, width)), "image")
        y = bind(
            relax.op.nn.conv2d(
                image,
                kernel,
                strides=(1, *integers(attrs.strides)),
                padding=(0, before, 0, after),
                dilation=(1, *integers(attrs.dilation)),
                groups=int(attrs.groups),
            ),
            "conv2d",
        )
        if bias is not None:
            y = bind(relax.op.add(y, relax.const(bias.reshape(1, -1, 1, 1))), "bias")
        graph.replace(top, relax.op.reshape(y, shape_of(top)), [var])


class _Pixels(NamedTuple):
    call: Call
    weight: np.ndarray
    bias: np.ndarray | None
    steps: list[Call]
    """Activations behind the bias."""
    top: Var


class PixelsAsRows(Rule):
    """``conv2d(x [N, C, H, W], w)`` of one pixel each -> the product of N rows, which reads the weights once:
    gates of channels, and classifiers written as convolutions; with bias and activations.  A single row is
    one where its weights are many."""

    name = "pixel_rows"
    counted = False
    anchors = ("relax.nn.conv2d",)

    def match(self, graph: Graph, var: Var) -> _Pixels | None:
        call = graph.value(var)
        attrs, weight = call.attrs, array_of(graph.value(call.args[1]))
        if dtype_of(var) != "float32" or weight is None or int(attrs.groups) != 1:
            return None
        if (str(attrs.data_layout), str(attrs.kernel_layout)) != ("NCHW", "OIHW"):
            return None
        batch, _, *image = shape_of(call.args[0])
        if (
            (batch < 2 and weight.size < _LARGE)
            or image != list(weight.shape[2:])
            or shape_of(var)[2:] != (1, 1)
        ):
            return None
        if any(integers(attrs.padding)):
            return None
        (top, bias), steps = channel_bias(graph, var), []
        while (user := graph.only_user(top)) is not None and graph.op_name(user) in _ACTIVATIONS:
            steps.append(graph.value(user))
            top = user
        return _Pixels(call, weight, bias, steps, top)

    def rewrite(self, graph: Graph, var: Var, found: _Pixels) -> None:
        top, columns = found.top, found.weight.reshape(found.weight.shape[0], -1).T
        bind = graph.binder(top, [var])
        rows = bind(relax.op.reshape(found.call.args[0], (shape_of(var)[0], columns.shape[0])), "rows")
        y = bind(relax.op.matmul(rows, constant(np.ascontiguousarray(columns))), "product")
        if found.bias is not None:
            y = bind(relax.op.add(y, relax.const(found.bias)), "bias")
        for step in found.steps:
            y = bind(relax.Call(step.op, [y], step.attrs), "activation")
        graph.replace(top, relax.op.reshape(y, shape_of(top)), [var])
