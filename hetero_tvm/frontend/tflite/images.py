"""TensorFlow Lite operators on images and products as ONNX nodes: convolutions, pooling, resizing, layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hetero_tvm.frontend.nodes import Untranslatable
from hetero_tvm.frontend.tflite.op import Op

_SAME = 0


def _pads(op: Op, extents: Sequence[int], kernel: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Zeros before and behind each axis: ``SAME`` keeps ceil(extent / stride) places, ``VALID`` adds none."""
    if op.option("Padding") != _SAME:
        return [0] * 2 * len(kernel)
    missing = [
        max(0, (-(-extent // stride) - 1) * stride + size - extent)
        for extent, size, stride in zip(extents, kernel, strides, strict=True)
    ]
    return [m // 2 for m in missing] + [m - m // 2 for m in missing]


def _windows(op: Op, option: str, axes: Sequence[str], default: int | None = None) -> list[int]:
    """The values of an option per axis."""
    return [int(op.option(option.format(axis), default)) for axis in axes]


def _scale(op: Op, x: int, weights: int) -> np.ndarray | None:
    """Steps of a product of two quantised operands."""
    left, right = op.tensor(x).scale, op.tensor(weights).scale
    return None if left is None or right is None else left.astype(np.float64) * right


def convolution(op: Op) -> None:
    """``CONV_2D``, weights [out, kernel, in], and ``CONV_3D``, weights [kernel, in, out]."""
    spatial = len(op.shape()) - 2
    rank, letters = spatial + 2, "HW" if spatial == 2 else "DHW"
    out, first, size = (0, rank - 1, 1) if spatial == 2 else (rank - 1, rank - 2, 0)
    kernel = list(op.shape(1)[size : size + spatial])
    channels = op.shape(1)[first]
    weights = op.weights(1, [out, first, *range(size, size + spatial)])
    _convolved(op, weights, kernel, op.shape()[-1] // max(channels, 1), letters)


def depthwise(op: Op) -> None:
    """``DEPTHWISE_CONV_2D``: weights [1, height, width, channels x multiplier]."""
    kernel = list(op.shape(1)[1:3])
    weights = op.weights(1, [3, 0, 1, 2])
    _convolved(op, weights, kernel, op.shape()[-1], "HW")


def _convolved(op: Op, weights: str, kernel: list[int], groups: int, letters: str) -> None:
    strides = _windows(op, "Stride{}", letters)
    dilations = _windows(op, "Dilation{}Factor", letters, 1)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    bias = [op.bias(2, _scale(op, 0, 1))] if op.has(2) else []
    made = op.emit(
        "Conv",
        op.value(0, first=True),
        weights,
        *bias,
        strides=strides,
        dilations=dilations,
        kernel_shape=kernel,
        pads=_pads(op, op.shape()[1:-1], reach, strides),
        group=groups,
    )
    op.give(op.activated(made), first=True)


def transposed(op: Op) -> None:
    """``TRANSPOSE_CONV`` and ``CONV_3D_TRANSPOSE``: the shape of the result, weights, images, bias.

    Weights are [out, kernel, in] for images, and [kernel, out, in] for volumes.
    """
    spatial = len(op.shape(2)) - 2
    letters, size = ("HW", 1) if spatial == 2 else ("DHW", 0)
    strides, kernel = _windows(op, "Stride{}", letters), list(op.shape(1)[size : size + spatial])
    dilations = _windows(op, "Dilation{}Factor", letters, 1)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    out = op.result().shape[1:-1]
    full = [(e - 1) * s + k for e, s, k in zip(op.shape(2)[1:-1], strides, reach, strict=True)]
    cut = [max(0, f - o) for f, o in zip(full, out, strict=True)]
    outside = 0 if spatial == 2 else spatial
    made = op.emit(
        "ConvTranspose",
        op.value(2, first=True),
        op.weights(1, [spatial + 1, outside, *range(size, size + spatial)]),
        *([op.bias(3, _scale(op, 2, 1))] if op.has(3) else []),
        strides=strides,
        dilations=dilations,
        kernel_shape=kernel,
        pads=[c // 2 for c in cut] + [c - c // 2 for c in cut],
        output_padding=[max(0, o - f) for f, o in zip(full, out, strict=True)],
    )
    op.give(op.activated(made), first=True)


def pooled(kind: str) -> Callable[[Op], None]:
    """``MAX_POOL_2D``, ``AVERAGE_POOL_2D`` (padding is not counted) or ``L2_POOL_2D``."""

    def translate(op: Op) -> None:
        kernel, strides = _windows(op, "Filter{}", ("Height", "Width")), _windows(op, "Stride{}", "HW")
        window = {
            "kernel_shape": kernel,
            "strides": strides,
            "pads": _pads(op, op.shape()[1:3], kernel, strides),
        }
        if kind == "MaxPool" and op.option("FusedActivationFunction", 0) == 0:
            op.moved([0], lambda x: [op.emit(kind, x, **window)], first=True)
            return
        x = op.value(0, first=True)
        if kind == "L2":
            made = op.emit("Sqrt", op.emit("AveragePool", op.emit("Mul", x, x), **window))
        else:
            made = op.emit(kind, x, **window)
        op.give(op.activated(made), first=True)

    return translate


def resized(mode: str) -> Callable[[Op], None]:
    """``RESIZE_BILINEAR`` and ``RESIZE_NEAREST_NEIGHBOR``."""

    def translate(op: Op) -> None:
        shape = op.result().shape
        sizes = op.const([shape[0], shape[3], *shape[1:3]])
        corners, centers = op.option("AlignCorners"), op.option("HalfPixelCenters")
        where = "align_corners" if corners else "half_pixel" if centers else "asymmetric"
        more = {}
        if mode == "nearest":
            more["nearest_mode"] = "floor" if where == "asymmetric" else "round_prefer_ceil"

        def move(x: str) -> list[str]:
            made = op.emit(
                "Resize", x, "", "", sizes, mode=mode, coordinate_transformation_mode=where, **more
            )
            return [made]

        if mode == "nearest":
            op.moved([0], move, first=True)
        else:
            op.give(move(op.value(0, first=True))[0], first=True)

    return translate


def depth(kind: str) -> Callable[[Op], None]:
    """``SPACE_TO_DEPTH`` and ``DEPTH_TO_SPACE``."""
    return lambda op: op.moved(
        [0], lambda x: [op.emit(kind, x, blocksize=int(op.option("BlockSize")))], first=True
    )


def blocks(to_batch: bool) -> Callable[[Op], None]:
    """``SPACE_TO_BATCH_ND`` (blocks, zeros around) and ``BATCH_TO_SPACE_ND`` (blocks, crops)."""

    def translate(op: Op) -> None:
        steps, ends = op.ints(1), op.constant(2).reshape(-1, 2).tolist()
        spatial, batch = len(steps), op.shape()[0]
        rest = list(op.shape()[1 + spatial :])
        if to_batch:
            zero = op.tensor().zero
            grown = [e + sum(p) for e, p in zip(op.shape()[1:], ends, strict=False)]
            pads = op.const(
                [0, *(p[0] for p in ends), *(0 for _ in rest), 0, *(p[1] for p in ends), *(0 for _ in rest)]
            )
            dtype = op.tensor().dtype
            split = [batch, *(x for g, b in zip(grown, steps, strict=True) for x in (g // b, b)), *rest]
            order = [2 * i + 2 for i in range(spatial)] + [0] + [2 * i + 1 for i in range(spatial)]
            order += range(1 + 2 * spatial, len(split))

            def move(x: str) -> list[str]:
                fill = op.const(0 if zero is None else int(zero[0]), dtype)
                x = op.reshaped(op.emit("Pad", x, pads, fill), split)
                return [op.reshaped(op.emit("Transpose", x, perm=order), op.result().shape)]

            op.moved([0], move)
            return
        small = list(op.shape()[1 : 1 + spatial])
        batch //= int(np.prod(steps))
        order = [spatial]
        for axis in range(spatial):
            order += [spatial + 1 + axis, axis]
        order += range(1 + 2 * spatial, 1 + 2 * spatial + len(rest))
        wide = [e * b for e, b in zip(small, steps, strict=True)]

        def back(x: str) -> list[str]:
            x = op.emit("Transpose", op.reshaped(x, [*steps, batch, *small, *rest]), perm=order)
            x = op.reshaped(x, [batch, *wide, *rest])
            last = [w - p[1] for w, p in zip(wide, ends, strict=True)]
            axes = list(range(1, 1 + spatial))
            return [op.emit("Slice", x, op.const([p[0] for p in ends]), op.const(last), op.const(axes))]

        op.moved([0], back)

    return translate


def dense(op: Op) -> None:
    """``FULLY_CONNECTED``: weights [out, in]."""
    if op.option("WeightsFormat", 0) != 0:
        raise Untranslatable("with shuffled weights")
    columns, inner = op.shape(1)
    x = op.value()
    if op.shape()[-1] != inner or not (op.option("KeepNumDims", 0) or len(op.shape()) == 2):
        x = op.reshaped(x, [-1, inner])
        lead: tuple[int, ...] = (int(np.prod(op.shape())) // max(inner, 1),)
    else:
        lead = op.shape()[:-1]
    made = op.emit("MatMul", x, op.weights(1, [1, 0]))
    if op.has(2):
        made = op.emit("Add", made, op.bias(2, _scale(op, 0, 1)))
    made = op.activated(made)
    if op.result().shape != (*lead, columns):
        op.give_raw(op.reshaped(op.quantized(made, op.result()), op.result().shape))
    else:
        op.give(made)


def products(op: Op) -> None:
    """``BATCH_MATMUL``."""
    sides = []
    for index, flag in enumerate(("AdjX", "AdjY")):
        rank = len(op.shape(index))
        order = [*range(rank - 2), rank - 1, rank - 2] if op.option(flag, False) else None
        if op.is_constant(index):
            sides.append(op.weights(index, order))
        else:
            name = op.value(index)
            sides.append(name if order is None else op.emit("Transpose", name, perm=order))
    op.give(op.emit("MatMul", *sides))


def local_response(op: Op) -> None:
    """``LOCAL_RESPONSE_NORMALIZATION``: ONNX divides alpha by the window."""
    size = 2 * int(op.option("Radius")) + 1
    made = op.emit(
        "LRN",
        op.value(0, first=True),
        size=size,
        alpha=float(op.option("Alpha")) * size,
        beta=float(op.option("Beta")),
        bias=float(op.option("Bias")),
    )
    op.give(made, first=True)


IMAGES: dict[str, Callable[[Op], None]] = {
    "CONV_2D": convolution,
    "CONV_3D": convolution,
    "DEPTHWISE_CONV_2D": depthwise,
    "TRANSPOSE_CONV": transposed,
    "CONV_3D_TRANSPOSE": transposed,
    "MAX_POOL_2D": pooled("MaxPool"),
    "AVERAGE_POOL_2D": pooled("AveragePool"),
    "L2_POOL_2D": pooled("L2"),
    "RESIZE_BILINEAR": resized("linear"),
    "RESIZE_NEAREST_NEIGHBOR": resized("nearest"),
    "SPACE_TO_DEPTH": depth("SpaceToDepth"),
    "DEPTH_TO_SPACE": depth("DepthToSpace"),
    "SPACE_TO_BATCH_ND": blocks(True),
    "BATCH_TO_SPACE_ND": blocks(False),
    "FULLY_CONNECTED": dense,
    "BATCH_MATMUL": products,
    "LOCAL_RESPONSE_NORMALIZATION": local_response,
}
"""Translations of operators on images, and of products."""
