"""Operators of which an operand has no elements, though their results have: sums of nothing, no updates,
means of pads."""

from __future__ import annotations

import numpy as np
import onnx

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend.onnx.graph.body import Body
from hetero_tvm.frontend.onnx.graph.constants import ConstantPool, Types
from hetero_tvm.frontend.onnx.graph.nodes import refusal


def summed(node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool) -> list[onnx.NodeProto] | None:
    """Gemm and Conv over no elements: zero, and the bias."""
    b = Body(node, opset)
    x, y = pool.shape(b.input(0), types), pool.shape(node.output[0], types)
    if x is None or y is None or 0 not in x or 0 in y:
        return None
    dtype = pool.dtype(b.input(0), types)
    value = b.const(np.zeros(y), dtype)
    if b.input(2) and node.op_type == "Gemm":
        value = b.op("Add", value, b.op("Mul", b.input(2), b.const(b.attributes.get("beta", 1.0), dtype)))
    elif b.input(2):
        along = b.const([-1, *[1] * (len(y) - 2)], "int64")
        value = b.op("Add", value, b.op("Reshape", b.input(2), along))
    b.end(0, value)
    return b.nodes


def mean(node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool) -> None:
    """Refusal of windows that hold nothing but pads, whose mean is that of no numbers: TVM has 0, not NaN."""
    b = Body(node, opset)
    shape, result = (pool.shape(name, types) for name in (node.input[0], node.output[0]))
    pads = list(b.attributes.get("pads", []))
    if b.attributes.get("count_include_pad", 0) or not any(pads) or shape is None or result is None:
        return
    kernel = list(b.attributes["kernel_shape"])
    strides, dilations = (list(b.attributes.get(n, [1] * len(kernel))) for n in ("strides", "dilations"))
    for n, (extent, taps) in enumerate(zip(shape[2:], kernel, strict=True)):
        first = np.arange(result[2 + n])[:, None] * strides[n] - pads[n]
        at = first + np.arange(taps) * dilations[n]
        if extent and not ((at >= 0) & (at < extent)).any(1).all():
            raise refusal(node, f"windows that lie in the pads alone, along axis {2 + n} of {list(shape)}")


def product(
    node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool
) -> list[onnx.NodeProto] | None:
    """Gemm over no elements; refusal of a C that has no place in the product."""
    shapes = [pool.shape(name, types) for name in (*node.input[2:3], node.output[0])]
    if len(node.input) < 3 or not node.input[2] or None in shapes:
        return summed(node, opset, types, pool)
    given, wanted = (shape or () for shape in shapes)
    ends = zip(given[::-1], wanted[::-1], strict=False)
    if len(given) > 2 or any(dim not in (1, size) for dim, size in ends):
        raise ModelError(
            f"Node {node.name!r} (Gemm) adds {node.input[2]!r} of shape {list(given)} to a product of shape "
            f"{list(wanted)}.",
            hint="Check the program that wrote the file.",
        )
    return summed(node, opset, types, pool)


def scattered(
    node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool
) -> list[onnx.NodeProto] | None:
    """Scattering of no updates: the data."""
    b = Body(node, opset)
    updates = pool.shape(b.input(2), types)
    if updates is None or 0 not in updates:
        return None
    b.end(0, b.input(0))
    return b.nodes


EMPTY = {
    "AveragePool": mean,
    "Conv": summed,
    "Gemm": product,
    "ScatterElements": scattered,
    "ScatterND": scattered,
}
"""Operator -> function that writes it out, or refuses it, where it has nothing to do."""
