"""ONNX's DFT and STFT as products with a constant matrix, Col2Im and ReverseSequence by plain operators."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import onnx

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.graph.body import Body
from hetero_tvm.frontend.onnx.graph.constants import ConstantPool, Types
from hetero_tvm.frontend.onnx.graph.nodes import refusal

_MOST_FACTORS = 1 << 24
"""Largest matrix of a DFT, in elements."""


def dft(node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool) -> list[onnx.NodeProto] | None:
    """Write out a DFT; None while its sizes are unknown.

    Raises
    ------
    UnsupportedOperatorError : a form without expansion, or a signal that is too long for a product.
    """
    b = Body(node, opset)
    shape = pool.shape(node.input[0], types)
    given = [b.input(n) for n in (1, 2)]
    if shape is None or any(name and name not in pool for name in given):
        return None
    length, axis = (int(pool.array(name).reshape(-1)[0]) if name else None for name in given)
    if axis is None:
        axis = -2 if opset >= 20 else int(b.attributes.get("axis", 1))
    axis %= len(shape)
    inverse, onesided = (bool(b.attributes.get(name, 0)) for name in ("inverse", "onesided"))
    back, parts = onesided and inverse, shape[-1]
    length = length or (2 * (shape[axis] - 1) if back else shape[axis])
    used, wanted = min(length, shape[axis]), length // 2 + 1 if onesided else length
    if back:  # from half of the frequencies to real values
        used, wanted = min(length // 2 + 1, shape[axis]), length
    if axis == len(shape) - 1 or parts not in (1, 2) or length < 1:
        raise UnsupportedOperatorError(f"Node {node.name!r} (DFT) has a form that is not supported.")
    if used * wanted * parts * 2 > _MOST_FACTORS:
        raise UnsupportedOperatorError(
            f"Node {node.name!r} (DFT) transforms {length} values, which is too many for a product."
        )
    x = node.input[0]
    if used < shape[axis]:
        x = b.cut(x, axis, 0, used)
    order = [n for n in range(len(shape)) if n != axis]
    order.insert(-1, axis)  # before the real and imaginary parts
    x = b.op("Transpose", x, perm=order)
    outer = [shape[n] for n in order[:-2]]
    x = b.op("Reshape", x, b.const([*outer, used * parts], "int64"))
    factors, kept = _factors(used, length, wanted, inverse)[:, :parts], 2
    if back:  # frequencies but the first, and the middle one, stand for two
        twice = 1 + ((np.arange(used) > 0) & (2 * np.arange(used) != length))
        factors, kept = factors[..., :1] * twice[:, None, None, None], 1
    factors = factors.reshape(used * parts, wanted * kept)
    y = b.op("MatMul", x, b.const(factors, pool.dtype(node.input[0], types)))
    y = b.op("Reshape", y, b.const([*outer, wanted, kept], "int64"))
    b.end(0, b.op("Transpose", y, perm=[int(n) for n in np.argsort(order)]))
    return b.nodes


def stft(node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool) -> list[onnx.NodeProto] | None:
    """Write out the DFT of overlapping frames; None while its sizes are unknown.

    Raises
    ------
    UnsupportedOperatorError : frames that are too long for a product, or longer than the signal.
    """
    b = Body(node, opset)
    shape, window = pool.shape(node.input[0], types), b.input(2)
    window_shape = pool.shape(window, types) if window else None
    given = [b.input(n) for n in (1, 3)]
    if shape is None or any(name and name not in pool for name in given) or (window and window_shape is None):
        return None
    step, length = (int(pool.array(name).reshape(-1)[0]) if name else None for name in given)
    length = length or (window_shape[0] if window_shape else shape[1])
    batch, parts = shape[0], shape[2] if len(shape) > 2 else 1
    if len(shape) > 3 or parts not in (1, 2):
        raise refusal(node, f"a signal of shape {shape}, neither [batch, length, 1] nor [batch, length, 2]")
    if shape[1] < length:
        raise refusal(node, f"frames of {length} values, and a signal of {shape[1]}")
    onesided = bool(b.attributes.get("onesided", 1))
    count, wanted = (shape[1] - length) // step + 1, length // 2 + 1 if onesided else length
    if length * wanted * parts * 2 > _MOST_FACTORS:
        raise UnsupportedOperatorError(
            f"Node {node.name!r} (STFT) transforms {length} values at a time, too many for a product."
        )
    places = np.arange(count)[:, None] * step + np.arange(length)
    x = b.op("Reshape", node.input[0], b.const([batch, shape[1], parts], "int64"))
    x = b.op("Gather", x, b.const(places, "int64"), axis=1)
    if window:
        x = b.op("Mul", x, b.op("Reshape", window, b.const([length, 1], "int64")))
    x = b.op("Reshape", x, b.const([batch, count, length * parts], "int64"))
    factors = _factors(length, length, wanted, False)[:, :parts].reshape(length * parts, wanted * 2)
    y = b.op("MatMul", x, b.const(factors, pool.dtype(node.input[0], types)))
    b.end(0, b.op("Reshape", y, b.const([batch, count, wanted, 2], "int64")))
    return b.nodes


def reverse_sequence(
    node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool
) -> list[onnx.NodeProto] | None:
    """Write out the reversal of every sequence's beginning as a lookup; None while shapes are unknown.

    Lengths below zero or beyond the sequence are an error of the call, as in ONNX Runtime.
    """
    shape = pool.shape(node.input[0], types)
    if shape is None:
        return None
    b = Body(node, opset)
    time, batch = (int(b.attributes.get(name, at)) for name, at in (("time_axis", 0), ("batch_axis", 1)))
    along_time, along_batch = ([-1 if n == axis else 1 for n in range(len(shape))] for axis in (time, batch))
    place = b.const(np.arange(shape[time]).reshape(along_time), "int64")
    lengths = b.op("Cast", node.input[1], to=onnx.TensorProto.INT64)
    if shape[batch]:
        least, most = (b.const(value, "int64") for value in (0, shape[time]))
        outside = b.op("Or", b.op("Less", lengths, least), b.op("Less", most, lengths))
        text = f"{node.input[1]} must lie in [0, {shape[time]}]"
        lengths = b.checked(lengths, b.every(b.op("Not", outside)), "int64", text)
    lengths = b.op("Reshape", lengths, b.const(along_batch, "int64"))
    mirrored = b.op("Sub", b.op("Sub", lengths, b.const(1, "int64")), place)
    at = b.op("Where", b.op("Less", place, lengths), mirrored, place)
    at = b.op("Expand", at, b.const(shape, "int64"))
    b.end(0, b.op("GatherElements", node.input[0], at, axis=time))
    return b.nodes


def _factors(used: int, length: int, wanted: int, inverse: bool) -> np.ndarray:
    """Factors of a DFT: [value, its real or imaginary part, frequency, the result's such part]."""
    steps = np.outer(np.arange(used), np.arange(wanted)) % length
    angle = steps * (2 * np.pi / length)
    # No rounding of pi where they are 0: the sign of what is added up is that of an angle of 0 or pi.
    real = np.where(4 * steps % (2 * length) == length, 0.0, np.cos(angle))
    imaginary = np.where(2 * steps % length == 0, 0.0, np.sin(angle) * (1 if inverse else -1))
    both = np.stack([np.stack([real, imaginary], -1), np.stack([-imaginary, real], -1)], 1)
    return both / length if inverse else both


def col2im(node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool) -> list[onnx.NodeProto] | None:
    """Write out a Col2Im of images; None while its sizes are unknown.

    Raises
    ------
    UnsupportedOperatorError : other than two spatial axes.
    """
    shape = pool.shape(node.input[0], types)
    if shape is None or any(name not in pool for name in node.input[1:3]):
        return None
    image, block = ([int(n) for n in pool.array(name)] for name in node.input[1:3])
    if len(image) != 2:
        raise UnsupportedOperatorError(
            f"Node {node.name!r} (Col2Im) has {len(image)} spatial axes; 2 are supported."
        )
    b = Body(node, opset)
    strides, dilations = (list(b.attributes.get(name, [1, 1])) for name in ("strides", "dilations"))
    pads = list(b.attributes.get("pads", [0] * 4))
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, block, strict=True)]
    counts = [(image[n] + pads[n] + pads[n + 2] - reach[n]) // strides[n] + 1 for n in range(2)]
    batch, taps = shape[0], block[0] * block[1]
    if shape[1] % taps or shape[2] != math.prod(counts):
        raise refusal(node, f"columns of shape {shape}: its image has {math.prod(counts)} blocks of {taps}")
    channels = shape[1] // taps
    apart = strides == block == reach and not any(pads)
    if apart and all(image[n] == counts[n] * block[n] for n in range(2)):
        x = b.op("Reshape", node.input[0], b.const([batch, channels, *block, *counts], "int64"))
        x = b.op("Transpose", x, perm=[0, 1, 4, 2, 5, 3])
        b.end(0, b.op("Reshape", x, b.const([batch, channels, *image], "int64")))
        return b.nodes
    # Every pixel adds up what lies on it; the place behind the last one holds a zero for those with less.  A
    # product with 0 and 1 would spread NaN and infinities over the image.
    places = _contributions(image, block, counts, strides, dilations, pads)
    x = b.op("Reshape", node.input[0], b.const([batch, channels, -1], "int64"))
    zero = b.const(np.zeros((batch, channels, 1)), pool.dtype(node.input[0], types))
    x = b.op("Gather", b.op("Concat", x, zero, axis=2), b.const(places, "int64"), axis=2)
    y = b.op("ReduceSum", x, b.const([3], "int64"), keepdims=0)
    b.end(0, b.op("Reshape", y, b.const([batch, channels, *image], "int64")))
    return b.nodes


def _contributions(
    image: Sequence[int],
    block: Sequence[int],
    counts: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
) -> np.ndarray:
    """Numbers of the elements of all blocks, [taps, blocks] in one row, that lie on each pixel: int64
    [pixels, most]; the number of elements where a pixel has fewer."""
    total = math.prod(block) * math.prod(counts)
    lists: list[list[int]] = [[] for _ in range(math.prod(image))]
    indices = itertools.product(*map(range, (*block, *counts)))
    for number, (row_tap, column_tap, row, column) in enumerate(indices):
        at_row = row * strides[0] + row_tap * dilations[0] - pads[0]
        at_column = column * strides[1] + column_tap * dilations[1] - pads[1]
        if 0 <= at_row < image[0] and 0 <= at_column < image[1]:
            lists[at_row * image[1] + at_column].append(number)
    most = max(1, max(map(len, lists), default=1))
    return np.array([each + [total] * (most - len(each)) for each in lists], np.int64).reshape(-1, most)
