"""Transposed convolutions as plain ones, for targets that have a unit for those."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Call, Var, relax
from hetero_tvm.ops.interleave import Interleave
from hetero_tvm.relax_passes.forms.conv1d import channel_bias, integers
from hetero_tvm.relax_passes.rewriting.fused import Claims
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule

_LAYOUTS = {"relax.nn.conv2d_transpose": ("NCHW", "IOHW"), "relax.nn.conv1d_transpose": ("NCW", "IOW")}


@dataclass(frozen=True)
class Axis:
    """An axis of a transposed convolution.

    With stride ``s``, results ``q * s + r`` (counted from the first place that the filter reaches) see taps
    ``r, r + s, ...`` of the filter alone: each of the ``s`` phases is a convolution of ``taps`` taps.

    Parameters
    ----------
    taps : of each phase, zeros included.
    before, after : padding of that convolution.
    cut : results of the interleaved phases before the first one that is wanted.
    out : results that are wanted.
    """

    stride: int
    taps: int
    before: int
    after: int
    cut: int
    out: int

    @classmethod
    def of(cls, extent: int, kernel: int, stride: int, padding: tuple[int, int], extra: int) -> Axis:
        taps = -(-kernel // stride)
        out = (extent - 1) * stride + kernel - sum(padding) + extra
        first = min(padding[0] // stride, taps - 1)
        last = (out - 1 + padding[0]) // stride
        before = taps - 1 - first
        after = max(0, last - first + taps - extent - before)
        return cls(stride, taps, before, after, padding[0] - first * stride, out)


class _Phased(NamedTuple):
    call: Call
    weight: np.ndarray
    bias: np.ndarray | None
    top: Var


class ConvTransposeAsPhases(Rule):
    """``conv2d_transpose(x, w)``, also of one dimension -> ``conv2d`` with strides-fold filters, one group
    of them for each phase of the result, which a permutation interleaves, or one kernel where the target
    ``claims`` it.  No multiplication by zeros that strides put between pixels."""

    name = "conv_transpose"
    counted = False
    anchors = tuple(_LAYOUTS)

    def __init__(self, claims: Claims = lambda op: False):
        self.claims = claims

    def match(self, graph: Graph, var: Var) -> _Phased | None:
        call = graph.value(var)
        attrs, weight = call.attrs, array_of(graph.value(call.args[1]))
        if weight is None or dtype_of(var) != "float32" or 0 in shape_of(var):
            return None
        if (str(attrs.data_layout), str(attrs.kernel_layout)) != _LAYOUTS[graph.op_name(var)]:
            return None
        top, bias = channel_bias(graph, var)
        return _Phased(call, weight, bias, top)

    def rewrite(self, graph: Graph, var: Var, found: _Phased) -> None:
        call, weight, bias, top = found
        attrs, x, out = call.attrs, call.args[0], shape_of(top)
        flat = len(out) == 3
        batch, channels, *extents = shape_of(x)
        strides, dilation, extra = (
            integers(values) for values in (attrs.strides, attrs.dilation, attrs.output_padding)
        )
        padding = integers(attrs.padding)
        padding = padding * (2 * len(extents) // len(padding))
        sides = list(zip(padding[: len(extents)], padding[len(extents) :], strict=True))
        bind = graph.binder(top, [var])
        # Without strides the convolution itself is dilated: zeros between taps would make NaN of infinity.
        gaps = [d if s == 1 else 1 for d, s in zip(dilation, strides, strict=True)]
        reach = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True)]
        weight = _spread(weight, [1 if s == 1 else d for d, s in zip(dilation, strides, strict=True)])
        axes = [Axis.of(*numbers) for numbers in zip(extents, reach, strides, sides, extra, strict=True)]
        axes = [
            replace(axis, taps=taps) if axis.stride == 1 else axis
            for axis, taps in zip(axes, weight.shape[2:], strict=True)
        ]
        if flat:
            gaps = [1, *gaps]
            axes, weight = [Axis.of(1, 1, 1, (0, 0), 0), *axes], weight[:, :, None, :]
            x = bind(relax.op.reshape(x, (batch, channels, 1, *extents)), "image")
        down, across = axes
        groups, each = int(attrs.groups), weight.shape[1]
        rows, columns = (
            extent + axis.before + axis.after - gap * (axis.taps - 1)
            for extent, axis, gap in zip(shape_of(x)[2:], axes, gaps, strict=True)
        )
        op = Interleave(
            batch,
            groups,
            each,
            rows,
            columns,
            (down.stride, across.stride),
            (down.cut, across.cut),
            (down.out, across.out),
        )
        claimed = op.strides != (1, 1) and self.claims(op)
        if claimed and groups == 1 and set(gaps) == {1} and _apart_pays(weight, down, across):
            y = self._apart(bind, x, weight, bias, down, across)
        else:
            y = bind(
                relax.op.nn.conv2d(
                    x,
                    constant(_phases(weight, down, across, groups)),
                    groups=groups,
                    padding=(down.before, across.before, down.after, across.after),
                    dilation=tuple(gaps),
                ),
                "phases",
            )
            if bias is not None:
                per_phase = np.broadcast_to(
                    bias.reshape(groups, 1, each), (groups, down.stride * across.stride, each)
                )
                y = bind(relax.op.add(y, relax.const(per_phase.reshape(1, -1, 1, 1).copy())), "bias")
        if claimed:
            ty = relax.TensorType(op.output.shape, op.output.dtype)
            kernel = graph.add_function(op.workload(), op.label)
            y = bind(relax.call_tir(kernel, [y], out_ty=ty), "whole")
            graph.replace(top, relax.op.reshape(y, out) if flat else y, [var])
            return
        if op.strides != (1, 1):
            y = bind(
                relax.op.reshape(y, (batch, groups, down.stride, across.stride, each, rows, columns)), "apart"
            )
            y = bind(relax.op.permute_dims(y, [0, 1, 4, 5, 2, 6, 3]), "turns")
            whole = (batch, groups * each, rows * down.stride, columns * across.stride)
            y = bind(relax.op.reshape(y, whole), "whole")
        begin = [down.cut, across.cut]
        end = [down.cut + down.out, across.cut + across.out]
        if begin != [0, 0] or tuple(end) != shape_of(y)[2:]:
            y = bind(relax.op.strided_slice(y, [2, 3], begin, end), "cut")
        graph.replace(top, relax.op.reshape(y, out) if flat else y, [var])

    @staticmethod
    def _apart(
        bind: Callable[[Call, str], Var],
        x: Var,
        weight: np.ndarray,
        bias: np.ndarray | None,
        down: Axis,
        across: Axis,
    ) -> Var:
        """One convolution for each phase, of the taps that it has, side by side."""
        parts = []
        for r, q in product(range(down.stride), range(across.stride)):
            taps = weight[:, :, r :: down.stride, q :: across.stride][:, :, ::-1, ::-1]
            filters = np.ascontiguousarray(taps.transpose(1, 0, 2, 3))
            less = [
                axis.taps - extent for axis, extent in zip((down, across), filters.shape[2:], strict=True)
            ]
            padding = (down.before - less[0], across.before - less[1], down.after, across.after)
            part = bind(relax.op.nn.conv2d(x, constant(filters), padding=padding), f"phase_{r}_{q}")
            if bias is not None:
                part = bind(relax.op.add(part, relax.const(bias.reshape(1, -1, 1, 1).copy())), "bias")
            parts.append(part)
        return bind(relax.op.concat(parts, axis=1), "phases")


_WORTH = 1.3
"""Products of all phases together, zeros included, by those of phases apart, from which the latter pay."""

_FULL = 16
"""Filters from which on those of one phase fill vectors."""


def _apart_pays(weight: np.ndarray, down: Axis, across: Axis) -> bool:
    """Whether phases differ so much in their taps that each should be a convolution of its own."""
    each, *kernel = weight.shape[1:]
    axes = (down, across)
    if any(k < axis.stride for k, axis in zip(kernel, axes, strict=True)):
        return False  # a phase without taps
    if any(axis.before < axis.taps - k // axis.stride for k, axis in zip(kernel, axes, strict=True)):
        return False  # it would begin inside of the image
    together = math.prod(axis.taps * axis.stride for axis in axes)
    return each >= _FULL and together >= _WORTH * math.prod(kernel)


def _spread(weight: np.ndarray, dilation: list[int]) -> np.ndarray:
    """Filter with its zeros between taps."""
    if set(dilation) == {1}:
        return weight
    shape = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True)]
    spread = np.zeros((*weight.shape[:2], *shape), weight.dtype)
    spread[(..., *(slice(None, None, d) for d in dilation))] = weight
    return spread


def _phases(weight: np.ndarray, down: Axis, across: Axis, groups: int) -> np.ndarray:
    """W [C, O / groups, H, W] as filters [groups x phases x O / groups, C / groups, *taps of a phase]."""
    channels, each, *kernel = weight.shape
    wide = [axis.taps * axis.stride for axis in (down, across)]
    padded = np.zeros((channels, each, *wide), weight.dtype)
    padded[:, :, : kernel[0], : kernel[1]] = weight
    # Tap r + s j of phase r is the j-th, and the last of a convolution reads the first pixel.
    split = padded.reshape(
        groups, channels // groups, each, down.taps, down.stride, across.taps, across.stride
    )[:, :, :, ::-1, :, ::-1]
    filters = split.transpose(0, 4, 6, 2, 1, 3, 5)
    return np.ascontiguousarray(filters.reshape(-1, channels // groups, down.taps, across.taps))


class _Stuffed(NamedTuple):
    call: Call
    weight: np.ndarray
    groups: int
    strides: list[int]
    dilation: list[int]
    padding: list[int]


class ConvTransposeAsConv2d(Rule):
    """``conv2d_transpose(x, w)`` -> the convolution, with w turned round, of x with zeros between pixels.

    For filters that reach no further than a stride, and for groups, where it costs little that the
    zeros are multiplied; :class:`ConvTransposeAsPhases` takes the others, and results that are cut.
    """

    name = "conv_transpose"
    counted = False
    anchors = ("relax.nn.conv2d_transpose",)

    def match(self, graph: Graph, var: Var) -> _Stuffed | None:
        call = graph.value(var)
        attrs, weight = call.attrs, array_of(graph.value(call.args[1]))
        if weight is None or dtype_of(var) != "float32":
            return None
        if str(attrs.data_layout) != "NCHW" or str(attrs.kernel_layout) != "IOHW":
            return None
        groups = int(attrs.groups)
        reaches = (k > s for k, s in zip(weight.shape[2:], integers(attrs.strides), strict=True))
        if groups == 1 and any(reaches):
            return None
        padding = integers(attrs.padding)
        padding = padding * (4 // len(padding))
        strides, dilation, extra = (
            integers(v) for v in (attrs.strides, attrs.dilation, attrs.output_padding)
        )
        reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        # The zeros behind the last pixel are there already.
        pads = [
            *(reach[i] - padding[i] for i in (0, 1)),
            *(reach[i] - padding[2 + i] + extra[i] - (strides[i] - 1) for i in (0, 1)),
        ]
        return _Stuffed(call, weight, groups, strides, dilation, pads) if min(pads) >= 0 else None

    def rewrite(self, graph: Graph, var: Var, found: _Stuffed) -> None:
        call, weight, groups, (down, across), dilation, pads = found
        x = call.args[0]
        batch, channels, height, width = shape_of(x)
        bind = graph.binder(var, [var])
        if (down, across) != (1, 1):
            apart = bind(relax.op.reshape(x, (batch, channels, height, 1, width, 1)), "pixels")
            widths = (0,) * 7 + (down - 1, 0, 0, 0, across - 1)
            apart = bind(relax.op.nn.pad(apart, widths, "constant", 0.0), "zeros")
            x = bind(relax.op.reshape(apart, (batch, channels, height * down, width * across)), "stuffed")
        by_group = weight.reshape(groups, -1, *weight.shape[1:]).swapaxes(1, 2)[..., ::-1, ::-1]
        turned = np.ascontiguousarray(by_group.reshape(-1, *by_group.shape[2:]))
        value = relax.op.nn.conv2d(
            x, constant(turned), padding=tuple(pads), dilation=tuple(dilation), groups=groups
        )
        graph.replace(var, value)
