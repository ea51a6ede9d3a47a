"""ONNX Runtime's fused layers for devices, as Olive and its optimisers write them, in plain ONNX.

They are those of image generators (channels last), of decoders with gated norms and short convolutions, and
what the optimiser for transformers makes of biases.  Semantics: ONNX Runtime, docs/ContribOperators.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from hetero_tvm.errors import ModelError, UnsupportedOperatorError
from hetero_tvm.frontend.onnx.graph.body import Body, as_text


def gelu(b: Body, x: str) -> str:
    """Gelu by the error function."""
    curve = b.op("Erf", b.op("Mul", x, b.const(math.sqrt(0.5))))
    return b.op("Mul", b.op("Mul", x, b.const(0.5)), b.op("Add", curve, b.const(1.0)))


def fast_gelu(b: Body, x: str) -> str:
    """Gelu by tanh."""
    cube = b.op("Mul", b.op("Mul", x, x), x)
    inner = b.op("Add", x, b.op("Mul", cube, b.const(0.044715)))
    curve = b.op("Tanh", b.op("Mul", inner, b.const(math.sqrt(2 / math.pi))))
    return b.op("Mul", b.op("Mul", x, b.const(0.5)), b.op("Add", curve, b.const(1.0)))


def normalized_groups(b: Body, x: str, scale: str, shift: str, groups: int, eps: float) -> str:
    """GroupNormalization of [N, C, ...], as PyTorch exports it, with scale and shift of each channel."""
    flat = b.op("Reshape", x, b.const([0, 0, -1], "int64"))
    rows = b.op("Reshape", flat, b.const([0, groups, -1], "int64"))
    ones, zeros = (b.op("CastLike", b.const(np.full(groups, value)), x) for value in (1.0, 0.0))
    y = b.op("Reshape", b.op("InstanceNormalization", rows, ones, zeros, epsilon=eps), b.op("Shape", flat))
    column = b.const([-1, 1], "int64")
    y = b.op("Mul", y, b.op("Reshape", scale, column))
    y = b.op("Add", y, b.op("Reshape", shift, column))
    return b.op("Reshape", y, b.op("Shape", x))


def channels_first(b: Body, x: str) -> str:
    """Images [N, H, W, C] as [N, C, H, W]."""
    rank = b.rank(x, 4)
    return b.op("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])


def channels_last(b: Body, y: str, rank: int = 4) -> str:
    """Images [N, C, H, W] as [N, H, W, C]."""
    return b.op("Transpose", y, perm=[0, *range(2, rank), 1])


def image_layer(b: Body) -> None:
    """NhwcConv and NhwcMaxPool: the layer, over images with channels last."""
    kind, rank = b.node.op_type.removeprefix("Nhwc"), b.rank(b.input(0), 4)
    inputs = [channels_first(b, b.input(0))]
    if kind == "Conv":
        inputs += [channels_first(b, b.input(1)), *filter(None, [b.input(2)])]  # [O, H, W, I]
    b.end(0, channels_last(b, b.op(kind, *inputs, **b.attributes), rank))


def group_norm(b: Body) -> None:
    """GroupNorm, and SkipGroupNorm that adds before it: by groups of channels, with SiLU."""
    # x, gamma, beta, skip, bias -> output, sum
    x = b.input(0)
    for index in (3, 4):
        if b.input(index):
            shape = b.shape(b.input(index)) or ()
            more = b.input(index)
            if index == 3 and len(shape) == 2:  # one for each image and channel
                more = b.op("Unsqueeze", more, b.const([1, 2], "int64"))
            x = b.op("Add", x, more)
    b.end(1, x)
    last = int(b.attributes.get("channels_last", 1))
    eps, groups = float(b.attributes.get("epsilon", 1e-5)), int(b.attributes["groups"])
    rank = b.rank(b.input(0), 4)
    image = b.op("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)]) if last else x
    y = normalized_groups(b, image, b.input(1), b.input(2), groups, eps)
    if int(b.attributes["activation"]):
        y = b.op("Mul", y, b.op("Sigmoid", y))
    b.end(0, channels_last(b, y, rank) if last else y)


def bias_add(b: Body) -> None:
    """BiasAdd: the operand, a bias and a residual."""
    b.end(0, b.op("Add", b.op("Add", b.input(0), b.input(1)), b.input(2)))


def bias_split_gelu(b: Body) -> None:
    """BiasSplitGelu: the first half, behind a bias, times the Gelu of the second."""
    x = b.op("Add", b.input(0), b.input(1))
    width = b.op("Div", b.extent(x, -1), b.const([2], "int64"))
    axis, zero, end = (b.const([n], "int64") for n in (-1, 0, np.iinfo(np.int64).max))
    left, right = b.op("Slice", x, zero, width, axis), b.op("Slice", x, width, end, axis)
    b.end(0, b.op("Mul", left, gelu(b, right)))


def bias_softmax(b: Body) -> None:
    """BiasSoftmax: of the operand with a bias, over the last axis."""
    axis, shape = int(b.attributes.get("axis", 1)), b.shape(b.input(0))
    if axis != -1 and (shape is None or axis != len(shape) - 1):
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} (BiasSoftmax) has axis={axis}; only the last one is supported.",
            hint="Optimise the file with ONNX Runtime's level 'basic', or take the file it was made from.",
        )
    b.end(0, b.op("Softmax", b.op("Add", b.input(0), b.input(1)), axis=-1))


def product_gelu(b: Body) -> None:
    """GemmFastGelu: a product, a bias and Gelu by tanh."""
    y = b.op("MatMul", b.input(0), b.input(1))
    b.end(0, fast_gelu(b, b.op("Add", y, b.input(2)) if b.input(2) else y))


def gated_norm(b: Body) -> None:
    """GatedRMSNorm: an RMS norm of each head, times the activation of a gate."""
    # x, scale [C], gate
    x, gate = b.input(0), b.input(2)
    apart = b.op("Concat", b.const([-1], "int64"), b.extent(b.input(1), 0), axis=0)
    rows = b.op("Reshape", x, apart)
    eps = b.const(float(b.attributes.get("epsilon", 1e-5)))
    deviation = b.op("Sqrt", b.op("Add", b.mean(b.op("Mul", rows, rows)), eps))
    y = b.op("Reshape", b.op("Mul", b.op("Div", rows, deviation), b.input(1)), b.op("Shape", x))
    curve = b.op("Sigmoid", gate)
    if as_text(b.attributes.get("activation", "silu")) != "sigmoid":
        curve = b.op("Mul", gate, curve)
    b.end(0, b.op("Mul", y, curve))


def short_convolution(b: Body) -> None:
    """CausalConvWithState: each channel by itself, over the steps that are kept and the new ones."""
    # x [B, C, L], weight [C, 1, K], bias, past [B, C, (K - 1) dilation] -> output, present
    weight, gap = b.shape(b.input(1)), int(b.attributes.get("dilation", 1))
    others = {
        "ndim": 1, "channels_last": 0, "state_window": 0, "state_update_capacity": 0, "state_length": 0,
        "input_channels": 0, "input_channel_offset": 0, "state_channels_last": 0,
    }  # fmt: skip
    given = {k: max(0, int(b.attributes.get(k, usual))) for k, usual in others.items()}
    bad = [f"{k}={value}" for k, value in given.items() if value != others[k]]
    if weight is None or None in weight:
        bad.append("weights of unknown size")
    if bad or weight is None:
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} (CausalConvWithState) has {', '.join(bad)}, which is not supported.",
            hint="Take the file that this one was made from.",
        )
    channels, kept = int(weight[0] or 0), (int(weight[2] or 1) - 1) * gap
    x = b.input(0)
    if b.input(3):
        x = b.op("Concat", b.input(3), x, axis=2)
    elif kept:
        x = b.op("Pad", x, b.const([0, 0, kept, 0, 0, 0], "int64"))
    bias = [name for name in [b.input(2)] if name]
    y = b.op("Conv", x, b.input(1), *bias, group=channels, dilations=[gap])
    if as_text(b.attributes.get("activation", "none")) in ("silu", "swish"):
        y = b.op("Mul", y, b.op("Sigmoid", y))
    b.end(0, y)
    if b.wants(1):
        b.end(1, b.cut(x, 2, -kept if kept else np.iinfo(np.int64).max, np.iinfo(np.int64).max))


def as_in_onnx(b: Body) -> None:
    """An operator that ONNX has by the same name."""
    b.end(0, b.op(b.node.op_type, *(b.input(n) for n in range(len(b.node.input))), **b.attributes))


def range_of(b: Body) -> None:
    """Range, whose ends may be rows of one number, and whose step may be left out."""
    scalar = b.const([], "int64")
    start, limit = (b.op("Reshape", b.input(n), scalar) for n in range(2))
    step = b.op("Reshape", b.input(2), scalar) if b.input(2) else b.op("CastLike", b.const(1), b.input(0))
    b.end(0, b.op("Range", start, limit, step))


def padded(b: Body) -> None:
    """Pad, whose widths may be a matrix of one row."""
    widths = b.op("Reshape", b.input(1), b.const([-1], "int64"))
    value = [b.op("Reshape", b.input(2), b.const([], "int64"))] if b.input(2) else []
    b.end(0, b.op("Pad", b.input(0), widths, *value, **b.attributes))


def new_axis(b: Body) -> None:
    """ExpandDims: an axis of extent 1 at the place that a scalar says."""
    axis = b.op("Cast", b.input(1), to=TensorProto.INT64)
    b.end(0, b.op("Unsqueeze", b.input(0), b.op("Reshape", axis, b.const([-1], "int64"))))


def unfolded(b: Body) -> None:
    """UnfoldTensor: all windows along an axis, whose elements become the last axis."""
    shape, axis = b.shape(b.input(0)), int(b.attributes.get("dim", -1))
    extent = None if shape is None else shape[axis]
    if shape is None or extent is None:
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} (UnfoldTensor) cuts an axis of unknown extent.",
            hint="State its input's shape in the file (value_info), or give the model's inputs fixed shapes.",
        )
    size, step, axis = int(b.attributes["size"]), int(b.attributes.get("step", 1)), axis % len(shape)
    if size > extent:
        raise ModelError(
            f"Node {b.node.name!r} (UnfoldTensor) cuts windows of {size} from an axis of {extent}.",
            hint="Check the program that wrote the file.",
        )
    places = np.arange(0, extent - size + 1, step)[:, None] + np.arange(size)
    windows = b.op("Gather", b.input(0), b.const(places, "int64"), axis=axis)
    others = [n for n in range(len(shape) + 1) if n != axis + 1]
    b.end(0, b.op("Transpose", windows, perm=[*others, axis + 1]))


def distances(b: Body) -> None:
    """CDist: distances [n, m] of rows, or their squares (nearest neighbours of scikit-learn).

    Rows are counted from the mean of the second ones first: squares of far ones would cancel.
    """
    metric = as_text(b.attributes.get("metric", "sqeuclidean"))
    if metric not in ("sqeuclidean", "euclidean"):
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} (CDist) has the metric {metric!r}, which is not supported.",
            hint="ONNX Runtime knows 'euclidean' and 'sqeuclidean'.",
        )
    middle = b.mean(b.input(1), (0,))
    x, y = (b.op("Sub", b.input(n), middle) for n in range(2))
    own, other = (b.reduce("ReduceSum", b.op("Mul", z, z), [1], 1, axes_as_input=13) for z in (x, y))
    product = b.op("MatMul", x, b.op("Transpose", y, perm=[1, 0]))
    squares = b.op("Add", own, b.op("Transpose", other, perm=[1, 0]))
    squares = b.op("Relu", b.op("Sub", squares, b.op("Add", product, product)))
    b.end(0, squares if metric == "sqeuclidean" else b.op("Sqrt", squares))


def unique(b: Body) -> None:
    """Write out Unique: values in the order of their first place, which each element is, and how many are."""
    y = b.op("Unique", b.input(0), sorted=0)
    names = [y, *(f"{y}/{part}" for part in ("first", "inverse", "counts"))]
    b.nodes[-1].output[:] = names
    for index, name in enumerate((names[0], *names[2:])):
        b.end(index, name)


EXPANSIONS: dict[str, Callable[[Body], None]] = {
    "NhwcConv": image_layer,
    "NhwcMaxPool": image_layer,
    "GroupNorm": group_norm,
    "SkipGroupNorm": group_norm,
    "BiasAdd": bias_add,
    "BiasSplitGelu": bias_split_gelu,
    "BiasSoftmax": bias_softmax,
    "GemmFastGelu": product_gelu,
    "GatedRMSNorm": gated_norm,
    "CausalConvWithState": short_convolution,
    "CDist": distances,
    "Trilu": as_in_onnx,
    "GatherND": as_in_onnx,
    "GridSample": as_in_onnx,
    "Range": range_of,
    "Pad": padded,
    "ExpandDims": new_axis,
    "UnfoldTensor": unfolded,
    "Unique": unique,
}
"""Operator -> function that writes it out."""
