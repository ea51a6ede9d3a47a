"""Transposed convolutions of volumes as those of images, for targets that have a unit for those."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetero_tvm.host.tvm import Call, Var, relax
from hetero_tvm.ops.volumes.slice_windows import SliceWindows
from hetero_tvm.relax_passes.forms.conv1d import channel_bias, integers, paddings
from hetero_tvm.relax_passes.forms.conv_transpose import Axis
from hetero_tvm.relax_passes.forms.volumes.conv3d import windowed
from hetero_tvm.relax_passes.forms.volumes.images import images_of, volume_of
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


class _Volume(NamedTuple):
    call: Call
    weight: np.ndarray
    top: Var
    bias: np.ndarray | None


class ConvTranspose3dAsConvTranspose2d(Rule):
    """``conv3d_transpose(x [N, C, D, H, W], w)`` -> ``conv2d_transpose`` of images that hold the channels of
    all slices that a slice of the result depends on.

    Depth is done by phases, as in ``conv_transpose.py``: slice ``q * stride + r`` of the result sees taps
    ``r, r + stride, ...`` alone, so an image has ``taps`` slices' channels and ``stride`` slices' filters.
    """

    name = "conv_transpose3d"
    counted = False
    anchors = ("relax.nn.conv3d_transpose",)

    def match(self, graph: Graph, var: Var) -> _Volume | None:
        call = graph.value(var)
        weight = array_of(graph.value(call.args[1]))
        if weight is None or dtype_of(var) != "float32" or 0 in shape_of(var):
            return None
        if str(call.attrs.data_layout) != "NCDHW" or str(call.attrs.kernel_layout) != "IODHW":
            return None
        return _Volume(call, weight, *channel_bias(graph, var))

    def rewrite(self, graph: Graph, var: Var, found: _Volume) -> None:
        call, weight, top, bias = found
        attrs, x = call.attrs, call.args[0]
        batch, channels, depth, height, width = shape_of(x)
        strides, dilation, extra = (
            integers(values) for values in (attrs.strides, attrs.dilation, attrs.output_padding)
        )
        padding = paddings(attrs.padding, 3)
        groups, each = int(attrs.groups), weight.shape[1]
        bind = graph.binder(top, [var])

        spread = np.zeros(
            (channels, each, dilation[0] * (weight.shape[2] - 1) + 1, *weight.shape[3:]), "float32"
        )
        spread[:, :, :: dilation[0]] = weight
        axis = Axis.of(depth, spread.shape[2], strides[0], (padding[0], padding[3]), extra[0])
        windows = SliceWindows(
            *(batch, depth, channels, height, width, axis.taps),
            before=axis.before,
            after=axis.after,
            groups=groups,
        )
        images = windows.out_slices
        x = windowed(graph, bind, images_of(bind, x), windows)
        y = bind(
            relax.op.nn.conv2d_transpose(
                x,
                relax.const(_by_phase(spread, axis, groups)),
                strides=tuple(strides[1:]),
                padding=(padding[1], padding[2], padding[4], padding[5]),
                output_padding=tuple(extra[1:]),
                dilation=tuple(dilation[1:]),
                groups=groups,
                data_layout="NCHW",
                kernel_layout="IOHW",
            ),
            "conv2d_transpose",
        )
        if bias is not None:
            by_phase = np.broadcast_to(bias.reshape(groups, 1, each), (groups, axis.stride, each))
            y = bind(relax.op.add(y, relax.const(by_phase.reshape(1, -1, 1, 1).copy())), "bias")
        plane, slices = shape_of(y)[2:], images * axis.stride
        if groups > 1:  # from a group's phases to a phase's groups
            y = bind(relax.op.reshape(y, (batch * images, groups, axis.stride, each, *plane)), "phases")
            y = bind(relax.op.permute_dims(y, [0, 2, 1, 3, 4, 5]), "turns")
        if (axis.cut, axis.out) != (0, slices):
            y = bind(relax.op.reshape(y, (batch, slices, groups * each, *plane)), "all")
            y = bind(relax.op.strided_slice(y, [1], [axis.cut], [axis.cut + axis.out]), "cut")
        y = bind(relax.op.reshape(y, (batch * axis.out, groups * each, *plane)), "slices")
        graph.replace(top, volume_of(bind, y, batch), [var])


def _by_phase(weight: np.ndarray, axis: Axis, groups: int) -> np.ndarray:
    """W [C, O / groups, D, H, W] as [groups x taps of a phase x C / groups, phases x O / groups, H, W]."""
    channels, each, kernel, *plane = weight.shape
    padded = np.zeros((channels, each, axis.taps * axis.stride, *plane), weight.dtype)
    padded[:, :, :kernel] = weight
    # Tap r + s j of phase r is the j-th, and the last one meets the first slice.
    split = padded.reshape(groups, channels // groups, each, axis.taps, axis.stride, *plane)[:, :, :, ::-1]
    return np.ascontiguousarray(
        split.transpose(0, 3, 1, 4, 2, 5, 6).reshape(groups * axis.taps * (channels // groups), -1, *plane)
    )
