"""Bindings that can work on channel blocks (NCHW[x]c): convolutions, pooling, norms, elementwise steps."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Call, Expr, IRModule, Var, relax
from hetero_tvm.ops import activations
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.elementwise import Elementwise
from hetero_tvm.ops.group_norm import GroupNorm
from hetero_tvm.ops.images.norms import BlockedGroupNorm, BlockedNorm, BlockedNormalization
from hetero_tvm.ops.layout import PLAIN, Layout
from hetero_tvm.ops.matmul import TENSORS
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.ops.pool2d import Pool2d
from hetero_tvm.relax_passes.fusions.pool2d import pool_of
from hetero_tvm.relax_passes.rewriting.fused import contract
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, is_image, shape_of

Bind = Callable[[Expr], Var]
"""Binds an expression to a new variable before the node, and returns the variable."""

CallOperator = Callable[[FusedOp, Sequence[Expr]], Call]
"""Expression that calls a fused operator on operands."""

NO_HALO = (0, 0, 0, 0)


@dataclasses.dataclass
class Image:
    """An operand as it lies in memory."""

    var: Var
    layout: Layout


class ImageNode(ABC):
    """A binding whose result is an image [N, C, H, W].

    Attributes
    ----------
    images : operands that are images, in order.
    gains : whether blocks pay by themselves (convolutions); others go with their neighbours.
    """

    gains = False

    def __init__(self, graph: Graph, var: Var, images: Sequence[Var]):
        self.graph, self.var, self.images = graph, var, list(images)

    def halo(self, index: int) -> tuple[int, int, int, int]:
        """Zeros that the node wants around operand ``index``."""
        return NO_HALO

    def passed_halo(self, own: tuple[int, ...]) -> tuple[int, ...]:
        """Zeros that the node wants around its operands where its result has ``own`` around it."""
        return NO_HALO

    def reads_plain(self, index: int) -> bool:
        """Whether operand ``index`` may as well be plain NCHW."""
        return False

    @abstractmethod
    def emit(self, images: Sequence[Image], y: Layout, call: CallOperator, bind: Bind) -> Expr:
        """Expression that computes the result in layout ``y``."""


class ConvNode(ImageNode):
    """A convolution with its epilogue."""

    gains = True

    def __init__(self, graph: Graph, var: Var, op: Conv2d):
        self.op, self.operands = op, list(graph.value(var).args[1].fields)
        self.positions = [0, *(i for i, x in enumerate(op.inputs) if x.name in TENSORS)]
        super().__init__(graph, var, [self.operands[i] for i in self.positions])

    def halo(self, index: int) -> tuple[int, int, int, int]:
        return self.op.padding if index == 0 else NO_HALO

    def reads_plain(self, index: int) -> bool:
        return index == 0 and self.op.groups == 1

    def blocked_op(self, x: Layout, y: Layout, residual: Layout | None) -> Conv2d:
        return dataclasses.replace(
            self.op, x_layout=str(x), y_layout=str(y), residual_layout=str(residual or PLAIN)
        )

    def emit(self, images: Sequence[Image], y: Layout, call: CallOperator, bind: Bind) -> Expr:
        operands, residuals = list(self.operands), images[1:]
        if any(image.layout != residuals[0].layout for image in residuals):
            plain = Layout(residuals[0].layout.block)
            even = [
                image if image.layout == plain else Image(bind(without_halo(image)), plain)
                for image in residuals
            ]
            images = [images[0], *even]
        for position, image in zip(self.positions, images, strict=True):
            operands[position] = image.var
        residual = images[1].layout if len(images) > 1 else None
        return call(self.blocked_op(images[0].layout, y, residual), operands)


class PoolNode(ImageNode):
    """A pooling."""

    def __init__(self, graph: Graph, var: Var, op: Pool2d, x: Expr):
        self.op = op
        super().__init__(graph, var, [x])

    def emit(self, images: Sequence[Image], y: Layout, call: CallOperator, bind: Bind) -> Expr:
        op = dataclasses.replace(self.op, x_layout=str(images[0].layout), y_layout=str(y))
        return call(op, [images[0].var])


class NormNode(ImageNode):
    """A normalisation over groups of channels, or of each pixel over all channels."""

    def __init__(self, graph: Graph, var: Var, op: GroupNorm | Normalization):
        self.op = op
        x, *self.vectors = graph.value(var).args[1].fields
        super().__init__(graph, var, [x])

    def blocked_op(self, x: Layout, y: Layout) -> BlockedNorm:
        """The operator on blocks."""
        op, image = self.op, shape_of(self.var)
        if isinstance(op, GroupNorm):
            return BlockedGroupNorm(*image, str(x), str(y), op.groups, op.eps, op.activation)
        return BlockedNormalization(*image, str(x), str(y), op.eps, op.centered, op.shifted)

    def emit(self, images: Sequence[Image], y: Layout, call: CallOperator, bind: Bind) -> Expr:
        return call(self.blocked_op(images[0].layout, y), [images[0].var, *self.vectors])


class ElementwiseNode(ImageNode):
    """Relax's own operator on tensors of five dimensions; broadcast constants are laid out beforehand."""

    def __init__(self, graph: Graph, var: Var, block: int):
        self.call, self.block = graph.value(var), block
        self.moves_zero = not _keeps_zero(graph, self.call)
        super().__init__(graph, var, [a for a in self.call.args if is_image(graph, a)])

    def emit(self, images: Sequence[Image], y: Layout, call: CallOperator, bind: Bind) -> Expr:
        at = iter(images)
        arguments = []
        for argument in self.call.args:
            if is_image(self.graph, argument):
                image = next(at)
                arguments.append(bind(without_halo(image)) if any(image.layout.halo) else image.var)
            else:
                arguments.append(_constant(self.graph, argument, self.block))
        value = relax.Call(self.call.op, arguments, self.call.attrs)
        return _finished(value, shape_of(self.var)[1], self.moves_zero, y, bind)


class ActivationNode(ImageNode):
    """An activation alone."""

    def __init__(self, graph: Graph, var: Var, op: Elementwise):
        self.op = op
        super().__init__(graph, var, [graph.value(var).args[1].fields[0]])

    def emit(self, images: Sequence[Image], y: Layout, call: CallOperator, bind: Bind) -> Expr:
        x = bind(without_halo(images[0])) if any(images[0].layout.halo) else images[0].var
        value = call(dataclasses.replace(self.op, shape=shape_of(x)), [x])
        return _finished(value, self.op.shape[1], activations.moves_zero(self.op.function), y, bind)


class ConcatNode(ImageNode):
    """A concatenation of whole blocks of channels."""

    def __init__(self, graph: Graph, var: Var):
        super().__init__(graph, var, graph.value(graph.value(var).args[0]).fields)

    def passed_halo(self, own: tuple[int, ...]) -> tuple[int, ...]:
        return own

    def emit(self, images: Sequence[Image], y: Layout, call: CallOperator, bind: Bind) -> Expr:
        if all(image.layout == y for image in images):
            return relax.op.concat([image.var for image in images], 1)
        parts = [bind(without_halo(i)) if any(i.layout.halo) else i.var for i in images]
        value = relax.op.concat(parts, 1)
        return with_halo(bind(value), y) if any(y.halo) else value


class SliceNode(ImageNode):
    """A slice of whole blocks of channels."""

    def __init__(self, graph: Graph, var: Var, first: int, end: int):
        self.first, self.end = first, end
        super().__init__(graph, var, [graph.value(var).args[0]])

    def emit(self, images: Sequence[Image], y: Layout, call: CallOperator, bind: Bind) -> Expr:
        block = images[0].layout.block
        x = bind(without_halo(images[0])) if any(images[0].layout.halo) else images[0].var
        value = relax.op.strided_slice(x, [1], [self.first // block], [self.end // block], [1])
        return with_halo(bind(value), y) if any(y.halo) else value


def _slice_of_channels(graph: Graph, var: Var) -> tuple[int, int] | None:
    """First and last channel that a slice of an image takes, if it takes all else and each of them."""
    x, axes, begins, ends, *steps = graph.value(var).args
    if not is_image(graph, x) or any(int(step) != 1 for part in steps for step in part):
        return None
    if [int(axis) % 4 for axis in axes] != [1]:
        return None
    channels = shape_of(x)[1]
    first, end = (int(next(iter(part))) for part in (begins, ends))
    first, end = (place + channels if place < 0 else min(place, channels) for place in (first, end))
    return (first, end) if 0 <= first < end else None


def _finished(value: Expr, channels: int, moves_zero: bool, y: Layout, bind: Bind) -> Expr:
    """A blocked result without a halo, with zeros where layout ``y`` has them."""
    if moves_zero and channels % y.block:
        lanes = np.arange(y.blocks(channels) * y.block) < channels
        mask = relax.const(lanes.reshape(1, -1, 1, 1, y.block))
        value = relax.op.where(mask, bind(value), relax.const(0.0, "float32"))
    return with_halo(bind(value), y) if any(y.halo) else value


def without_halo(image: Image) -> Expr:
    """The blocked image without its halo, as a slice that fuses into its reader."""
    top, left, bottom, right = image.layout.halo
    _, _, rows, pitch, _ = shape_of(image.var)
    return relax.op.strided_slice(image.var, [2, 3], [top, left], [rows - bottom, pitch - right], [1, 1])


def with_halo(var: Var, layout: Layout) -> Expr:
    """A blocked image with zeros around it, as a pad that fuses into its writer."""
    top, left, bottom, right = layout.halo
    return relax.op.nn.pad(var, [0, 0, 0, 0, top, bottom, left, right, 0, 0])


def node_of(graph: Graph, var: Var, block: int, module: IRModule) -> ImageNode | None:
    """Node that lets ``var`` work on blocks of ``block`` channels; None when it cannot."""
    if not is_image(graph, var):
        return None
    op = contract(module, graph.value(var))
    if isinstance(op, Elementwise):
        return ActivationNode(graph, var, op)
    if isinstance(op, GroupNorm) or (
        isinstance(op, Normalization) and len(op.lead) == 1 and len(op.trail) == 2
    ):
        return NormNode(graph, var, op) if op.dtype == "float32" else None
    if op is not None:
        return ConvNode(graph, var, op) if isinstance(op, Conv2d) and op.plain else None
    pool = pool_of(graph, var)
    if pool is not None:
        return PoolNode(graph, var, *pool)
    name = graph.op_name(var)
    if name == "relax.concat":
        parts = graph.fields(graph.value(var).args[0])
        even = parts and all(is_image(graph, p) and shape_of(p)[1] % block == 0 for p in parts)
        return ConcatNode(graph, var) if even and int(graph.value(var).attrs.axis) in (1, -3) else None
    if name == "relax.strided_slice":
        channels = _slice_of_channels(graph, var)
        whole = channels is not None and not any(place % block for place in channels)
        return SliceNode(graph, var, *channels) if whole else None
    if name in _ELEMENTWISE and _fits(graph, var):
        return ElementwiseNode(graph, var, block)
    return None


# elementwise ---------------------------------------------------------------------------------------
# fmt: off
_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "relax.nn.relu": activations.relu, "relax.nn.silu": activations.silu, "relax.tanh": np.tanh,
    "relax.nn.gelu": activations.gelu_erf, "relax.nn.gelu_tanh": activations.gelu_tanh,
    "relax.sigmoid": activations.sigmoid, "relax.exp": np.exp, "relax.abs": np.abs,
    "relax.negative": np.negative, "relax.sqrt": np.sqrt, "relax.square": np.square,
    "relax.erf": activations.erf, "relax.clip": np.clip, "relax.add": np.add,
    "relax.subtract": np.subtract, "relax.multiply": np.multiply, "relax.divide": np.divide,
    "relax.maximum": np.maximum, "relax.minimum": np.minimum, "relax.nn.leakyrelu": np.positive,
    "relax.log": np.log,
}
# fmt: on
"""Operators that work value by value, with their meaning in NumPy."""


def _fits(graph: Graph, var: Var) -> bool:
    """Every operand is an image that broadcasts over no channels, or a constant of up to four dimensions."""
    images = 0
    for argument in graph.value(var).args:
        if is_image(graph, argument):
            if shape_of(argument)[1] != shape_of(var)[1]:
                return False
            images += 1
        elif _number(argument) is None:
            array = array_of(graph.value(argument))
            if array is None or array.ndim > 4:
                return False
            shape = (1,) * (4 - array.ndim) + array.shape
            if any(extent not in (1, whole) for extent, whole in zip(shape, shape_of(var), strict=True)):
                return False
    return images > 0


def _keeps_zero(graph: Graph, call: Call) -> bool:
    """Whether lanes past the channels stay zero: images and laid-out constants are zero there."""
    values = []
    for argument in call.args:
        if (number := _number(argument)) is not None:
            values.append(number)
        else:
            array = array_of(graph.value(argument))
            per_channel = array is None or (array.ndim >= 3 and array.shape[-3] > 1)
            if not per_channel and array.size > 1:
                return False
            values.append(0.0 if per_channel else float(array.reshape(())))
    with np.errstate(all="ignore"):
        return bool(_ELEMENTWISE[call.op.name](*(np.float64(v) for v in values)) == 0)


def _number(argument: Expr) -> float | None:
    """A bound of a clip; None for a tensor."""
    value = getattr(argument, "value", None)
    return float(value) if isinstance(value, int | float) else None


def _constant(graph: Graph, argument: Expr, block: int) -> Expr:
    """A constant operand for images in blocks."""
    array = array_of(graph.value(argument))
    if array is None or array.size == 1:
        return argument
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    if array.shape[1] == 1:
        return constant(array[..., None])
    return constant(Layout(block).pack(array))
