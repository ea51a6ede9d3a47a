"""Operators of which an operand has no elements, though their results have: sums of nothing, no updates."""

from __future__ import annotations

import numpy as np
import onnx

from hetero_tvm.frontend.onnx.graph.body import Body
from hetero_tvm.frontend.onnx.graph.constants import ConstantPool, Types


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


EMPTY = {"Conv": summed, "Gemm": summed, "ScatterElements": scattered, "ScatterND": scattered}
"""Operator -> function that writes it out where it has nothing to do."""
