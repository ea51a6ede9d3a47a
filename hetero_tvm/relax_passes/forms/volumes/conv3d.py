"""Convolutions of volumes as those of images, for targets that have a unit for those."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.volumes.conv3d import Conv3d
from hetero_tvm.ops.volumes.slice_windows import SliceWindows
from hetero_tvm.relax_passes.forms.conv1d import channel_bias, integers, paddings, unpadded
from hetero_tvm.relax_passes.forms.volumes.images import images_of, volume_of
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


class _Volume(NamedTuple):
    call: Call
    x: Expr
    weight: np.ndarray
    padding: list[int]
    top: Var
    bias: np.ndarray | None


class Conv3dAsConv2d(Rule):
    """``conv3d(x [N, C, D, H, W], w)`` -> a convolution of N x D' images, with the bias behind it.

    An image holds the channels of all slices that the filter's depth covers for one slice of the result, so
    that depth is summed up as channels are: :class:`hetero_tvm.ops.volumes.slice_windows.SliceWindows`, which
    ``ReadSlices`` lets kernels read where the slices lie.  Depthwise convolutions, in which copies would
    cost more than products, are taken where the target ``takes`` them so.
    """

    name = "conv3d"
    counted = False
    anchors = ("relax.nn.conv3d",)

    def __init__(self, takes: Callable[[Conv3d], bool] = lambda op: False):
        self._takes = takes

    def match(self, graph: Graph, var: Var) -> _Volume | None:
        call = graph.value(var)
        weight = array_of(graph.value(call.args[1]))
        if weight is None or dtype_of(var) != "float32" or 0 in shape_of(var):
            return None
        if str(call.attrs.data_layout) != "NCDHW" or str(call.attrs.kernel_layout) != "OIDHW":
            return None
        padding = paddings(call.attrs.padding, 3)
        x, more = unpadded(graph, call.args[0])
        padding = [own + added for own, added in zip(padding, more, strict=True)]
        found = _Volume(call, x, weight, padding, *channel_bias(graph, var))
        if weight.shape[1] == 1 and int(call.attrs.groups) > 1:
            windows = _windows(found)
            op = Conv2d(
                *windows.output.shape,
                filters=len(weight),
                kernel=weight.shape[3:],
                padding=(padding[1], padding[2], padding[4], padding[5]),
                groups=windows.groups,
                **_steps(call),
            )
            if windows.dilation > 1 or not self._takes(Conv3d.of(op, windows)):
                return None
        return found

    def rewrite(self, graph: Graph, var: Var, found: _Volume) -> None:
        call, x, weight, padding, top, bias = found
        filters, each, taps = weight.shape[:3]
        bind = graph.binder(top, [var])
        image = windowed(graph, bind, images_of(bind, x), _windows(found))
        flat = weight.transpose(0, 2, 1, 3, 4).reshape(filters, taps * each, *weight.shape[3:])
        y = bind(
            relax.op.nn.conv2d(
                image,
                constant(np.ascontiguousarray(flat)),
                padding=(padding[1], padding[2], padding[4], padding[5]),
                groups=int(call.attrs.groups),
                **_steps(call),
            ),
            "conv2d",
        )
        if bias is not None:
            y = bind(relax.op.add(y, relax.const(bias.reshape(1, -1, 1, 1))), "bias")
        graph.replace(top, volume_of(bind, y, shape_of(var)[0]), [var])


def windowed(graph: Graph, bind: Callable[[Expr, str], Var], images: Expr, windows: SliceWindows) -> Expr:
    """Images of the windows of slices; ``images`` where each window is a slice."""
    if windows.taps == windows.step == 1 and not windows.before and not windows.after:
        return images
    function = graph.add_function(windows.workload(), windows.label)
    out = relax.TensorType(windows.output.shape, "float32")
    return bind(relax.call_tir(function, [images], out_ty=out), "windows")


def _steps(call: Call) -> dict[str, tuple[int, ...]]:
    """Strides and dilation within a slice."""
    return {name: tuple(integers(getattr(call.attrs, name))[1:]) for name in ("strides", "dilation")}


def _windows(found: _Volume) -> SliceWindows:
    attrs = found.call.attrs
    batch, channels, slices, *plane = shape_of(found.x)
    return SliceWindows(
        batch,
        slices,
        channels,
        *plane,
        taps=found.weight.shape[2],
        step=integers(attrs.strides)[0],
        dilation=integers(attrs.dilation)[0],
        before=found.padding[0],
        after=found.padding[3],
        groups=int(attrs.groups),
    )
