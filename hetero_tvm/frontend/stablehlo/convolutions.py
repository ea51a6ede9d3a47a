"""Convolutions of StableHLO as ONNX nodes: plain ones, and those over images with zeros between pixels."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_tvm.frontend.nodes import Untranslatable
from hetero_tvm.frontend.stablehlo.op import Op, turned


def convolution(op: Op) -> str:
    """``convolution``."""
    numbers = op.dialects.ConvDimensionNumbers(op.raw.attributes["dimension_numbers"])
    spatial = len(numbers.input_spatial_dimensions)
    if any(x != 1 for x in op.ints("lhs_dilation", [1] * spatial)):
        return _transposed_convolution(op, numbers)
    if int(op.raw.attributes["batch_group_count"]) != 1 or "true" in op.text("window_reversal"):
        raise Untranslatable("a convolution with groups of the batch, or a reversed window")
    return _from_channels_first(op, numbers, _plain_convolution(op, numbers))


def _operands(op: Op, numbers: Any) -> tuple[str, str]:
    """Images and weights with channels first."""
    image = [
        numbers.input_batch_dimension,
        numbers.input_feature_dimension,
        *numbers.input_spatial_dimensions,
    ]
    kernel = [
        numbers.kernel_output_feature_dimension,
        numbers.kernel_input_feature_dimension,
        *numbers.kernel_spatial_dimensions,
    ]
    return turned(op, op.inputs[0], image), turned(op, op.inputs[1], kernel)


def _plain_convolution(op: Op, numbers: Any) -> str:
    spatial = len(numbers.input_spatial_dimensions)
    image, weight = _operands(op, numbers)
    pads = np.asarray(op.ints("padding", [0] * 2 * spatial)).reshape(spatial, 2)
    if (pads < 0).any():
        raise Untranslatable("a convolution with negative padding")
    return op.emit(
        "Conv",
        image,
        weight,
        strides=op.ints("window_strides", [1] * spatial),
        dilations=op.ints("rhs_dilation", [1] * spatial),
        pads=[int(x) for x in pads.T.reshape(-1)],
        group=int(op.raw.attributes["feature_group_count"]),
    )


def _transposed_convolution(op: Op, numbers: Any) -> str:
    """A convolution of an image with zeros between its pixels, which is a transposed one."""
    spatial = len(numbers.input_spatial_dimensions)
    strides, dilation = op.ints("lhs_dilation"), op.ints("rhs_dilation", [1] * spatial)
    groups = int(op.raw.attributes["feature_group_count"])
    if any(x != 1 for x in op.ints("window_strides", [1] * spatial)) or groups != 1:
        raise Untranslatable("a transposed convolution with strides or groups of its own")
    image, weight = _operands(op, numbers)
    kernel = [op.shape(1)[axis] for axis in numbers.kernel_spatial_dimensions]
    weight = op.emit("Transpose", weight, perm=[1, 0, *range(2, 2 + spatial)])
    ends = [-1] * spatial, [np.iinfo(np.int64).min] * spatial, list(range(2, 2 + spatial)), [-1] * spatial
    weight = op.emit("Slice", weight, *(op.const(part) for part in ends))  # the window runs backwards
    pads = np.asarray(op.ints("padding", [0] * 2 * spatial)).reshape(spatial, 2)
    reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    begin = [r - int(p) for r, p in zip(reach, pads[:, 0], strict=True)]
    end = [r - int(p) for r, p in zip(reach, pads[:, 1], strict=True)]
    extra = [max(0, -x) for x in end]
    if any(x < 0 for x in begin) or any(e >= s for e, s in zip(extra, strides, strict=True)):
        raise Untranslatable("a transposed convolution with padding beyond its window")
    made = op.emit(
        "ConvTranspose",
        image,
        weight,
        strides=strides,
        dilations=dilation,
        pads=[*begin, *(max(0, x) for x in end)],
        output_padding=extra,
    )
    return _from_channels_first(op, numbers, made)


def _from_channels_first(op: Op, numbers: Any, name: str) -> str:
    out = [
        numbers.output_batch_dimension,
        numbers.output_feature_dimension,
        *numbers.output_spatial_dimensions,
    ]
    return turned(op, name, [out.index(axis) for axis in range(len(out))])
