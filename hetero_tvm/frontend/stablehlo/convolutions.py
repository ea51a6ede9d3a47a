"""Convolutions of StableHLO as ONNX nodes: plain ones, and those over images with zeros between pixels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero_tvm.frontend.nodes import onnx_type
from hetero_tvm.frontend.stablehlo.op import Op, reshaped, turned


def convolution(op: Op) -> str:
    """``convolution``."""
    numbers = op.dialects.ConvDimensionNumbers(op.raw.attributes["dimension_numbers"])
    spatial = len(numbers.input_spatial_dimensions)
    image, shape, weight = _operands(op, numbers)
    between = [x - 1 for x in op.ints("lhs_dilation", [1] * spatial)]
    pads = np.asarray(op.ints("padding", [0] * 2 * spatial)).reshape(spatial, 2)
    groups = int(op.raw.attributes["feature_group_count"])
    if (parts := int(op.raw.attributes["batch_group_count"])) != 1:
        image, shape = _groups_of_channels(op, image, shape, parts)
        groups = parts
    if any(between):
        made = _transposed_convolution(op, numbers, image, weight, pads) if groups == 1 else None
        if made is not None:
            return _from_channels_first(op, numbers, made)
        image, shape = with_zeros_between(op, image, shape, [0, 0, *between])
    made = op.emit(
        "ConvInteger" if _is_small(op) else "Conv",
        cropped(op, image, shape[2:], *pads.T, first=2),
        weight,
        strides=op.ints("window_strides", [1] * spatial),
        dilations=op.ints("rhs_dilation", [1] * spatial),
        pads=[max(0, int(x)) for x in pads.T.reshape(-1)],
        group=groups,
    )
    return _from_channels_first(op, numbers, made)


def _operands(op: Op, numbers: Any) -> tuple[str, list[int], str]:
    """Images with channels first, their shape, and weights with channels first, as they meet the images."""
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
    weight = turned(op, _summed_as(op, 1), kernel)
    if "true" in (text := op.text("window_reversal")):
        flags = re.findall("true|false", text)
        flags = flags * (len(kernel) - 2) if len(flags) == 1 else flags
        weight = reversed_along(op, weight, [2 + axis for axis, flag in enumerate(flags) if flag == "true"])
    return turned(op, _summed_as(op, 0), image), [op.shape()[axis] for axis in image], weight


def _summed_as(op: Op, index: int) -> str:
    """An operand in the type that the products are summed in; small integers have operators for that."""
    if op.dtype(index) == op.result_dtype or _is_small(op):
        return op.inputs[index]
    return op.emit("Cast", op.inputs[index], to=onnx_type(op.result_dtype))


def _is_small(op: Op) -> bool:
    """Whether integers of 8 bits are summed in 32, in the plain form that ``ConvInteger`` has."""
    spread = any(x != 1 for x in op.ints("lhs_dilation", [1]))
    return not spread and op.result_dtype == "int32" and {op.dtype(), op.dtype(1)} <= {"int8", "uint8"}


def reversed_along(op: Op, name: str, axes: Sequence[int]) -> str:
    """A tensor with the order of some axes reversed."""
    ends = [-1] * len(axes), [np.iinfo(np.int64).min] * len(axes), axes, [-1] * len(axes)
    return op.emit("Slice", name, *(op.const(list(part)) for part in ends))


def _groups_of_channels(op: Op, image: str, shape: Sequence[int], groups: int) -> tuple[str, list[int]]:
    """Images whose batch is divided into groups, with these as groups of channels."""
    batch, channels, *extents = shape
    name = reshaped(op, image, [groups, batch // groups, channels, *extents])
    name = op.emit("Transpose", name, perm=[1, 0, *range(2, len(shape) + 1)])
    found = [batch // groups, groups * channels, *extents]
    return reshaped(op, name, found), found


def with_zeros_between(
    op: Op, data: str, shape: Sequence[int], counts: Sequence[int], value: str = ""
) -> tuple[str, list[int]]:
    """A tensor with so many elements between those along each axis, zeros or ``value``, and its shape."""
    shape = list(shape)
    for axis, between in enumerate(counts):
        if between and shape[axis] > 1:
            # Every element becomes a row that begins with it; the last row ends there.
            data = reshaped(op, data, [*shape[: axis + 1], 1, *shape[axis + 1 :]])
            after = [between if n == axis + 1 else 0 for n in range(len(shape) + 1)]
            data = op.emit("Pad", data, op.const([*[0] * len(after), *after]), value)
            full, count = shape[axis] * (between + 1), (shape[axis] - 1) * (between + 1) + 1
            data = reshaped(op, data, [*shape[:axis], full, *shape[axis + 1 :]])
            data = op.emit("Slice", data, op.const([0]), op.const([count]), op.const([axis]))
            shape[axis] = count
    return data, shape


def cropped(
    op: Op, data: str, extents: Sequence[int], low: Sequence[int], high: Sequence[int], first: int = 0
) -> str:
    """A tensor without what negative padding takes away from its axes, from the ``first`` on."""
    if all(n >= 0 for n in (*low, *high)):
        return data
    begin = [max(0, -int(n)) for n in low]
    end = [extent - max(0, -int(n)) for extent, n in zip(extents, high, strict=True)]
    axes = list(range(first, first + len(extents)))
    return op.emit("Slice", data, op.const(begin), op.const(end), op.const(axes))


def _transposed_convolution(op: Op, numbers: Any, image: str, weight: str, pads: np.ndarray) -> str | None:
    """A convolution of an image with zeros between its pixels as a transposed one; None where it is none."""
    spatial = len(numbers.input_spatial_dimensions)
    strides, dilation = op.ints("lhs_dilation"), op.ints("rhs_dilation", [1] * spatial)
    kernel = [op.shape(1)[axis] for axis in numbers.kernel_spatial_dimensions]
    reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    begin = [r - int(p) for r, p in zip(reach, pads[:, 0], strict=True)]
    end = [r - int(p) for r, p in zip(reach, pads[:, 1], strict=True)]
    extra = [max(0, -x) for x in end]
    beyond = any(x < 0 for x in begin) or any(e >= s for e, s in zip(extra, strides, strict=True))
    if beyond or any(x != 1 for x in op.ints("window_strides", [1] * spatial)):
        return None
    weight = op.emit("Transpose", weight, perm=[1, 0, *range(2, 2 + spatial)])
    weight = reversed_along(op, weight, range(2, 2 + spatial))  # the window runs backwards
    return op.emit(
        "ConvTranspose",
        image,
        weight,
        strides=strides,
        dilations=dilation,
        pads=[*begin, *(max(0, x) for x in end)],
        output_padding=extra,
    )


def _from_channels_first(op: Op, numbers: Any, name: str) -> str:
    out = [
        numbers.output_batch_dimension,
        numbers.output_feature_dimension,
        *numbers.output_spatial_dimensions,
    ]
    return turned(op, name, [out.index(axis) for axis in range(len(out))])
