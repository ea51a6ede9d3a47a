"""Transposed convolutions as plain ones, for targets that have a unit for those."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.ops.interleave import Interleave
from hetero_tvm.relax_passes.forms.conv1d import channel_bias, integers, paddings
from hetero_tvm.relax_passes.rewriting.fused import Claims
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule

LAYOUTS = {"relax.nn.conv2d_transpose": ("NCHW", "IOHW"), "relax.nn.conv1d_transpose": ("NCW", "IOW")}
"""Layouts of images and filters that are taken."""


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
    weight: np.ndarray | Expr
    bias: np.ndarray | None
    top: Var


class ConvTransposeAsPhases(Rule):
    """``conv2d_transpose(x, w)``, also of one dimension -> ``conv2d`` with strides-fold filters, one group
    of them for each phase of the result, which a permutation interleaves, or one kernel where the target
    ``claims`` it.  No multiplication by zeros that strides put between pixels."""

    name = "conv_transpose"
    counted = False
    anchors = tuple(LAYOUTS)

    def __init__(self, claims: Claims = lambda op: False):
        self.claims = claims

    def match(self, graph: Graph, var: Var) -> _Phased | None:
        call = graph.value(var)
        attrs, weight = call.attrs, array_of(graph.value(call.args[1]))
        if dtype_of(var) != "float32" or 0 in shape_of(var):
            return None
        if (str(attrs.data_layout), str(attrs.kernel_layout)) != LAYOUTS[graph.op_name(var)]:
            return None
        if weight is None:
            weight = call.args[1]
            if set(integers(attrs.dilation)) != {1}:
                raise Miss("a dilated transposed convolution by computed filters")
        top, bias = channel_bias(graph, var)
        return _Phased(call, weight, bias, top)

    def rewrite(self, graph: Graph, var: Var, found: _Phased) -> None:
        call, weight, bias, top = found
        bind = graph.binder(top, [var])
        plan = Plan.of(call, weight, shape_of(top))
        x = call.args[0] if not plan.flat else bind(relax.op.reshape(call.args[0], plan.image), "image")
        op = plan.op
        claimed = op.strides != (1, 1) and self.claims(op)
        kinds = plan.kinds if claimed and _apart_pays(op.groups, op.channels, plan.kinds) else plan.together
        weight = plan.weight if isinstance(weight, np.ndarray) else bind(plan.weight, "filters")
        y = _computed(bind, x, weight, bias, op.groups, plan.axes, kinds)
        y = interleaved(graph, bind, y, op, claimed)
        graph.replace(top, relax.op.reshape(y, shape_of(top)) if plan.flat else y, [var])


class Plan(NamedTuple):
    """A transposed convolution as one of phases.

    Parameters
    ----------
    image : shape of x as images; rows are images of one row where the result is ``flat``.
    weight : filters [C, O / groups, H, W] with the zeros of a dilation; an expression if they are computed.
    op : what puts the phases side by side.
    kinds : of the phases of each axis.
    """

    image: tuple[int, ...]
    flat: bool
    weight: np.ndarray | Expr
    axes: list[Axis]
    op: Interleave
    kinds: list[list[Kind]]

    @classmethod
    def of(cls, call: Call, weight: np.ndarray | Expr, out: tuple[int, ...]) -> Plan:
        """The plan of a call, of which computed filters have no dilation."""
        attrs = call.attrs
        batch, channels, *extents = shape_of(call.args[0])
        strides, dilation, extra = (
            integers(values) for values in (attrs.strides, attrs.dilation, attrs.output_padding)
        )
        padding = paddings(attrs.padding, len(extents))
        sides = list(zip(padding[: len(extents)], padding[len(extents) :], strict=True))
        if isinstance(weight, np.ndarray):
            weight = _spread(weight, dilation)
        _, each, *reach = _shape(weight)
        axes = [Axis.of(*numbers) for numbers in zip(extents, reach, strides, sides, extra, strict=True)]
        flat = len(out) == 3
        if flat:
            axes, dilation, extents = [Axis.of(1, 1, 1, (0, 0), 0), *axes], [1, *dilation], [1, *extents]
            reach = [1, *reach]
            weight = weight[:, :, None] if isinstance(weight, np.ndarray) else relax.op.expand_dims(weight, 2)
        down, across = axes
        rows, columns = (
            extent + axis.before + axis.after - axis.taps + 1
            for extent, axis in zip(extents, axes, strict=True)
        )
        op = Interleave(
            batch,
            int(attrs.groups),
            each,
            rows,
            columns,
            (down.stride, across.stride),
            (down.cut, across.cut),
            (down.out, across.out),
        )
        kinds = [kinds_of(*numbers) for numbers in zip(axes, reach, dilation, extents, strict=True)]
        return cls((batch, channels, *extents), flat, weight, axes, op, kinds)

    @property
    def together(self) -> list[list[Kind]]:
        """One kind of all phases of each axis."""
        return [_together(axis, found) for axis, found in zip(self.axes, self.kinds, strict=True)]


def interleaved(
    graph: Graph, bind: Callable[[Call, str], Var], y: Var, op: Interleave, claimed: bool
) -> Expr:
    """The phases in ``y`` put side by side: by the kernel of ``op`` where it is ``claimed``."""
    if claimed:
        ty = relax.TensorType(op.output.shape, op.output.dtype)
        kernel = graph.add_function(op.workload(), op.label)
        return bind(relax.call_tir(kernel, [y], out_ty=ty), "whole")
    if op.strides != (1, 1):
        apart = (op.batch, op.groups, *op.strides, op.channels, op.rows, op.columns)
        y = bind(relax.op.reshape(y, apart), "apart")
        y = bind(relax.op.permute_dims(y, [0, 1, 4, 5, 2, 6, 3]), "turns")
        (down, across), channels = op.strides, op.groups * op.channels
        whole = (op.batch, channels, op.rows * down, op.columns * across)
        y = bind(relax.op.reshape(y, whole), "whole")
    end = [first + size for first, size in zip(op.cut, op.out, strict=True)]
    if op.cut != (0, 0) or tuple(end) != shape_of(y)[2:]:
        y = bind(relax.op.strided_slice(y, [2, 3], list(op.cut), end), "cut")
    return y


class Kind(NamedTuple):
    """Neighbouring phases of an axis that see taps at the same places, which one convolution computes.

    Parameters
    ----------
    phases : from the first to the one behind the last.
    taps : of a phase, from the last one, which meets the first pixel.
    """

    phases: range
    taps: tuple[int, ...]

    @property
    def gap(self) -> int:
        return self.taps[0] - self.taps[1] if len(self.taps) > 1 else 1

    def padding(self, axis: Axis) -> tuple[int, int]:
        """Pixels around the image; cut from it where negative."""
        return axis.before - (axis.taps - 1 - self.taps[0]), axis.after - self.taps[-1]


def kinds_of(axis: Axis, reach: int, dilation: int, extent: int) -> list[Kind]:
    """Phases by the taps that they have; those without any are left out.

    A tap that is not there must not be multiplied as a zero: it would make NaN of infinity.
    """
    found: list[Kind] = []
    for phase in range(axis.stride):
        places = range(phase, reach, axis.stride)
        taps = tuple(j for j, place in enumerate(places) if place % dilation == 0)[::-1]
        if found and found[-1] == Kind(range(found[-1].phases.start, phase), taps):
            found[-1] = Kind(range(found[-1].phases.start, phase + 1), taps)
        elif taps:
            found.append(Kind(range(phase, phase + 1), taps))
    cuts = (sum(min(0, pad) for pad in kind.padding(axis)) for kind in found)
    return found if extent + min(cuts) > 0 else _together(axis, [])


def _together(axis: Axis, kinds: list[Kind]) -> list[Kind]:
    """One kind of all phases, with zeros for taps that some do not have."""
    return kinds if axis.stride == 1 else [Kind(range(axis.stride), tuple(range(axis.taps))[::-1])]


def _computed(
    bind: Callable[[Call, str], Var],
    x: Var,
    weight: np.ndarray | Var,
    bias: np.ndarray | None,
    groups: int,
    axes: list[Axis],
    kinds: list[list[Kind]],
) -> Var:
    """Phases side by side, ``[N, groups x phases x filters, rows, columns]``, from one convolution a kind."""
    strides, each = [axis.stride for axis in axes], _shape(weight)[1]
    batch, _, *extents = shape_of(x)

    def biased(y: Var, phases: int) -> Var:
        if bias is None:
            return y
        wide = np.broadcast_to(bias.reshape(groups, 1, each), (groups, phases, each))
        return bind(relax.op.add(y, relax.const(wide.reshape(1, -1, 1, 1).copy())), "bias")

    def convolved(*kind: Kind) -> Var:
        pads = [one.padding(axis) for one, axis in zip(kind, axes, strict=True)]
        image = x
        if min(min(pad) for pad in pads) < 0:
            ends = [extent + min(0, pad[1]) for extent, pad in zip(extents, pads, strict=True)]
            begins = [max(0, -pad[0]) for pad in pads]
            image = bind(relax.op.strided_slice(x, [2, 3], begins, ends), "part")
        (top, bottom), (left, right) = ([max(0, size) for size in pad] for pad in pads)
        y = bind(
            relax.op.nn.conv2d(
                image,
                constant(filters_of(weight, groups, axes, kind))
                if isinstance(weight, np.ndarray)
                else _filters_of_computed(bind, weight, groups, axes, kind),
                groups=groups,
                padding=(top, left, bottom, right),
                dilation=tuple(one.gap for one in kind),
            ),
            "phases",
        )
        return biased(y, math.prod(len(one.phases) for one in kind)) if every else y

    def joined(parts: list[Var], found: list[Kind], stride: int, outer: int, inner: int) -> Var:
        """Parts ``[N, outer x phases x inner, rows, columns]`` as one, with 0 for phases without taps."""
        if found == [Kind(range(stride), found[0].taps)]:
            return parts[0]
        ends = [0, *(kind.phases.stop for kind in found)]
        plane, along = shape_of(parts[0])[2:], 1
        if outer > 1:
            shapes = [(batch, outer, len(kind.phases) * inner, *plane) for kind in found]
            parts = [
                bind(relax.op.reshape(y, shape), "apart") for y, shape in zip(parts, shapes, strict=True)
            ]
            along = 2
        for n, kind in enumerate(found):
            before = kind.phases.start - ends[n]
            after = stride - kind.phases.stop if n + 1 == len(found) else 0
            if before or after:
                widths = [0] * (2 * along) + [before * inner, after * inner] + [0] * 4
                parts[n] = bind(relax.op.nn.pad(parts[n], widths, "constant", 0.0), "empty")
        y = parts[0] if len(parts) == 1 else bind(relax.op.concat(parts, axis=along), "phases")
        whole = (batch, outer * stride * inner, *plane)
        return y if along == 1 else bind(relax.op.reshape(y, whole), "phases")

    every = all(sum(len(kind.phases) for kind in found) == s for found, s in zip(kinds, strides, strict=True))
    rows = [
        joined(
            [convolved(row, column) for column in kinds[1]],
            kinds[1],
            strides[1],
            groups * len(row.phases),
            each,
        )
        for row in kinds[0]
    ]
    y = joined(rows, kinds[0], strides[0], groups, strides[1] * each)
    return y if every else biased(y, math.prod(strides))


def _shape(weight: np.ndarray | Expr) -> tuple[int, ...]:
    return weight.shape if isinstance(weight, np.ndarray) else shape_of(weight)


def _filters_of_computed(
    bind: Callable[[Call, str], Var], weight: Var, groups: int, axes: list[Axis], kind: tuple[Kind, ...]
) -> Var:
    """Filters of computed W, as :func:`filters_of` has them of others."""
    channels, each, *kernel = shape_of(weight)
    wide = [axis.taps * axis.stride for axis in axes]
    widths = [0] * 4 + [n for full, extent in zip(wide, kernel, strict=True) for n in (0, full - extent)]
    if any(widths):
        weight = bind(relax.op.nn.pad(weight, widths, "constant", 0.0), "wide")
    places = _places(axes, kind)
    for axis, place in enumerate(places, 2):
        if place.size > 1 or wide[axis - 2] > 1:
            index = constant(place.reshape(-1).astype("int32"))
            weight = bind(relax.op.take(weight, index, axis=axis, mode="clip"), "taps")
    (rows, down), (columns, across) = (place.shape for place in places)
    split = (groups, channels // groups, each, rows, down, columns, across)
    turned = bind(
        relax.op.permute_dims(bind(relax.op.reshape(weight, split), "split"), [0, 3, 5, 2, 1, 4, 6]), "turned"
    )
    return bind(relax.op.reshape(turned, (-1, channels // groups, down, across)), "filters")


def _places(axes: list[Axis], kind: tuple[Kind, ...]) -> list[np.ndarray]:
    """Places along each axis of W that a kind's phases have, each with its taps."""
    # Tap r + s j of phase r is the j-th, and the last of a convolution reads the first pixel.
    return [
        np.add.outer(one.phases, axis.stride * np.array(one.taps))
        for one, axis in zip(kind, axes, strict=True)
    ]


def filters_of(weight: np.ndarray, groups: int, axes: list[Axis], kind: tuple[Kind, ...]) -> np.ndarray:
    """W [C, O / groups, H, W] as filters [groups x phases x O / groups, C / groups, *taps of a phase]."""
    channels, each, *kernel = weight.shape
    wide = [axis.taps * axis.stride for axis in axes]
    padded = np.zeros((channels, each, *wide), weight.dtype)
    padded[:, :, : kernel[0], : kernel[1]] = weight
    rows, columns = _places(axes, kind)
    taken = padded[:, :, rows[:, :, None, None], columns]
    split = taken.reshape(groups, channels // groups, each, *rows.shape, *columns.shape)
    filters = split.transpose(0, 3, 5, 2, 1, 4, 6)
    return np.ascontiguousarray(filters.reshape(-1, channels // groups, rows.shape[1], columns.shape[1]))


_FULL = 16
"""Filters from which on those of one kind fill vectors, and cost no more than together with the others."""


def _apart_pays(groups: int, each: int, kinds: list[list[Kind]]) -> bool:
    """Whether each kind should be a convolution of its own, which multiplies no zeros."""
    return all(len(found) == 1 for found in kinds) or (groups == 1 and each >= _FULL)


def _spread(weight: np.ndarray, dilation: list[int]) -> np.ndarray:
    """Filter with its zeros between taps."""
    if set(dilation) == {1}:
        return weight
    shape = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True)]
    spread = np.zeros((*weight.shape[:2], *shape), weight.dtype)
    spread[(..., *(slice(None, None, d) for d in dilation))] = weight
    return spread


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
        padding = paddings(attrs.padding, 2)
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
