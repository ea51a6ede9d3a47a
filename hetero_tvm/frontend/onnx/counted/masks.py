"""Assignments through boolean masks as selections between two tensors: nothing in them is counted.

PyTorch's exporter writes ``y[mask] = value`` as a ScatterND at the places that NonZero finds in the mask, of
the value repeated as often as the mask holds.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto

from hetero_tvm.frontend.onnx.graph.body import Body
from hetero_tvm.frontend.onnx.graph.constants import ConstantPool, Types
from hetero_tvm.frontend.onnx.graph.nodes import set_nodes

_Makers = Mapping[str, onnx.NodeProto]


def write_masked(graph: onnx.GraphProto, types: Types, pool: ConstantPool, opset: int) -> bool:
    """Write assignments of one value, or one row, through a mask as Where; whether there were any.

    Sums of a mask whose places are asked for too are the number of these places: what comes in other rows
    (``y[mask] = 2 * y[mask]``) has as many, then.
    """
    makers = {name: node for node in graph.node for name in node.output}
    found = {node.input[0]: node.output[0] for node in graph.node if node.op_type == "NonZero"}
    if not found:
        return False
    nodes: list[onnx.NodeProto] = []
    changed = False
    for node in graph.node:
        written = _selection(node, makers, types, pool, opset)
        if written is None:
            written = _number(node, found, makers, types, pool, opset)
        nodes += [node] if written is None else written
        changed |= written is not None
    if changed:
        set_nodes(graph, _in_order(nodes))
    return changed


def _selection(
    node: onnx.NodeProto, makers: _Makers, types: Types, pool: ConstantPool, opset: int
) -> list[onnx.NodeProto] | None:
    """Nodes of a Where that stand for a ScatterND; None where it is another."""
    if node.op_type != "ScatterND" or any(a.name == "reduction" and a.s != b"none" for a in node.attribute):
        return None
    data, indices, updates = node.input
    places = _made(indices, "Transpose", makers)
    sought = places and _made(places.input[0], "NonZero", makers)
    if not sought:
        return None
    mask = sought.input[0]
    shape, held = pool.shape(data, types), pool.shape(mask, types)
    if shape is None or held is None or not held or held != shape[: len(held)]:
        return None
    value = _value(updates, mask, shape, makers, types, pool)
    if value is None:
        return None
    b = Body(node, opset)
    if types.get(mask, (None, None))[0] != TensorProto.BOOL:
        mask = b.op("Cast", mask, to=TensorProto.BOOL)
    mask = b.op("Reshape", mask, b.const([*held, *[1] * (len(shape) - len(held))], "int64"))
    if np.prod(pool.shape(value, types), dtype=int) == 1:
        value = b.op("Reshape", value, b.const([1] * len(shape), "int64"))
    b.op("Where", mask, value, data, output=node.output[0])
    return b.nodes


def _value(
    updates: str, mask: str, shape: tuple[int, ...], makers: _Makers, types: Types, pool: ConstantPool
) -> str | None:
    """The tensor that ``updates`` repeats for each place of a mask, and that fits data of ``shape``."""
    repeated = makers.get(updates)
    while repeated is not None and repeated.op_type in ("Reshape", "Identity"):
        repeated = makers.get(repeated.input[0])
    if repeated is None or repeated.op_type != "Expand":
        return None
    value = repeated.input[0]
    own = pool.shape(value, types)
    if own is None:
        return None
    if np.prod(own, dtype=int) == 1:
        return value
    behind = _extents_behind_the_first(repeated.input[1], makers, pool)
    if not behind or len(own) > len(behind) or list(shape[-len(behind) :]) != behind:
        return None
    # A row for each place: a mask of fewer axes, or one that holds all elements of a row, or none.
    rows = _made(mask, "Expand", makers)
    held = pool.shape(rows.input[0] if rows is not None else mask, types)
    first = len(shape) - len(behind)
    if rows is None:
        return value if held is not None and len(held) == first else None
    expanded = pool.shape(mask, types)
    whole = held is not None and expanded is not None and len(held) == len(expanded) == len(shape)
    return value if whole and held is not None and set(held[first:]) == {1} else None


def _extents_behind_the_first(name: str, makers: _Makers, pool: ConstantPool) -> list[int] | None:
    """Constant extents behind the number of places, in the shape that an Expand asks for."""
    joined = _made(name, "Concat", makers)
    if joined is None or len(joined.input) < 2 or not all(part in pool for part in joined.input[1:]):
        return None
    return [int(one) for part in joined.input[1:] for one in pool.array(part).reshape(-1)]


def _number(
    node: onnx.NodeProto,
    found: Mapping[str, str],
    makers: _Makers,
    types: Types,
    pool: ConstantPool,
    opset: int,
) -> list[onnx.NodeProto] | None:
    """Nodes that give the sum of a mask as the number of its places; None for another node."""
    if node.op_type != "ReduceSum" or pool.shape(node.output[0], types) not in ((), (1,)):
        return None
    cast = _made(node.input[0], "Cast", makers)
    if cast is None or types.get(node.output[0], (None, None))[0] != TensorProto.INT64:
        return None
    mask = cast.input[0]
    if mask not in found and (flat := _made(mask, "Reshape", makers)) is not None:
        mask = flat.input[0]
    if mask not in found or types.get(mask, (None, None))[0] != TensorProto.BOOL:
        return None
    b = Body(node, opset)
    number = b.op("Gather", b.op("Shape", found[mask]), b.const(1, "int64"))
    rank = len(pool.shape(node.output[0], types) or ())
    b.op("Reshape", number, b.const([1] * rank, "int64"), output=node.output[0])
    return b.nodes


def _made(name: str, kind: str, makers: _Makers) -> onnx.NodeProto | None:
    node = makers.get(name)
    return node if node is not None and node.op_type == kind else None


def _in_order(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes with each NonZero as early as its operand: a sum may have stood before it."""
    ordered: list[onnx.NodeProto] = []
    sought = {node.input[0]: node for node in nodes if node.op_type == "NonZero"}
    given = {name for node in nodes for name in node.output}
    ordered += [node for name, node in sought.items() if name not in given]
    for node in nodes:
        if node.op_type != "NonZero":
            ordered.append(node)
            ordered += [sought[name] for name in node.output if name in sought]
        elif sought[node.input[0]] is not node:  # a second one of the same operand
            ordered.append(node)
    return ordered
