"""Weights that an ONNX file brings packed: integers of 4 and 8 bits with a scale per block or per column.

They are operands of MatMulNBits, or come out of a DequantizeLinear.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.stored import StoredModel
from hetero_tvm.ops.decoding.columns import PackedColumns
from hetero_tvm.ops.decoding.storage import GROUPS, QuantizedWeight, Storage

_FORMS = {4: "int4", 8: "int8"}
_INTEGERS = 4
"""``accuracy_level`` from which on what packed weights are multiplied with may be rounded to 8 bits."""


def unpacked(data: np.ndarray, bits: int) -> np.ndarray:
    """Values of ``bits`` bits from bytes, the lowest bits first."""
    if bits not in (2, 4, 8):
        raise UnsupportedOperatorError(f"Weights of {bits} bits are not supported; 2, 4 and 8 are.")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((data[..., None] >> shifts) & ((1 << bits) - 1)).reshape(*data.shape[:-1], -1)


def packed_columns(source: StoredModel | None) -> PackedColumns | None:
    """Columns of the packed weights of a file; None where it has none that a kernel takes as they are."""
    columns = PackedColumns()
    levels = []
    graph = onnx.GraphProto() if source is None else source.proto.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type not in _READERS or source is None:
            continue
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        first, read = _READERS[node.op_type]
        names = [*node.input[first : first + 3], "", ""][:3]
        given = [source.array(stored[name]) if name in stored else None for name in names]
        if given[0] is None or given[1] is None or (names[2] and given[2] is None):
            continue  # comes at run time
        for weight in read(attributes, *given):
            columns.add(weight)
            levels.append(int(attributes.get("accuracy_level", 0)))
    columns.may_round = bool(levels) and min(levels) >= _INTEGERS
    return columns if columns else None


def _weight(
    attributes: dict[str, Any], data: np.ndarray, scales: np.ndarray, zero: np.ndarray | None
) -> QuantizedWeight | None:
    """A weight as it is packed; None of blocks and zero points that kernels do not know."""
    rows, width = int(attributes["N"]), int(attributes["K"])
    bits, block = int(attributes.get("bits", 4)), int(attributes["block_size"])
    group = min(block, GROUPS[-1])
    if (
        bits not in _FORMS
        or group not in GROUPS
        or block % group
        or (zero is not None and zero.dtype != np.uint8)
    ):
        return None
    count = -(-width // block)
    q = unpacked(data, bits).reshape(rows, -1)[:, :width]
    scale = scales.astype(np.float32).reshape(rows, count)
    zeros = None if zero is None else unpacked(zero.reshape(rows, -1), bits).reshape(rows, -1)[:, :count]
    return _in_groups(bits, q, scale, zeros, block, group)


def _dequantized(
    attributes: dict[str, Any], data: np.ndarray, scales: np.ndarray, zero: np.ndarray | None
) -> QuantizedWeight | None:
    """The weight [K, N], or [N, K], of a DequantizeLinear as it is stored; None of other forms.

    Scales are per column or per row of it, or per block of those.
    """
    name = str(data.dtype)
    bits, signed = (8 if name.endswith("8") else 4), not name.startswith("u")
    axis, block = int(attributes.get("axis", 1)), int(attributes.get("block_size", 0))
    if name not in ("int4", "uint4", "int8", "uint8") or data.ndim != 2 or not data.size:
        return None
    if axis in (1, -1) if block else axis in (0, -2):  # as a product with a transposed weight wants it
        data, axis = data.T, 0 if block else 1
        scales, zero = (p if p is None or p.ndim < 2 else p.T for p in (scales, zero))
    if block:
        if axis not in (0, -2) or scales.ndim != 2 or min(block, GROUPS[-1]) not in GROUPS:
            return None
    elif axis not in (1, -1) or scales.shape != (data.shape[1],):
        return None
    else:  # the same for all blocks of a column
        block = GROUPS[-1] * -(-data.shape[0] // GROUPS[-1])
        scales, zero = scales[None], None if zero is None else zero[None]
    if block % (group := min(block, GROUPS[-1])):
        return None
    shift = 1 << (bits - 1) if signed else 0
    moved = None if zero is None else (zero.astype(np.int16) + shift).T
    if moved is None and not signed:
        moved = np.zeros(scales.shape, np.int16).T
    elif moved is not None and (moved == 1 << (bits - 1)).all():
        moved = None  # the middle of the range
    return _in_groups(
        bits, (data.astype(np.int16) + shift).T, scales.astype(np.float32).T, moved, block, group
    )


def _packed(*given: Any) -> list[QuantizedWeight]:
    """The weight of a MatMulNBits."""
    weight = _weight(*given)
    return [] if weight is None else [weight]


def _any_way(
    attributes: dict[str, Any], data: np.ndarray, scales: np.ndarray, zero: np.ndarray | None
) -> list[QuantizedWeight]:
    """The weight of a DequantizeLinear; either way round where one scale serves all, which does not tell."""
    ways = [int(attributes.get("axis", 1))]
    if data.ndim == 2 and scales.size == 1 and not attributes.get("block_size", 0):
        ways = [1, 0]
    found = []
    for axis in ways:
        parts = scales, zero
        if len(ways) > 1:
            parts = tuple(p if p is None else np.repeat(p.reshape(1), data.shape[axis]) for p in parts)
        found.append(_dequantized({**attributes, "axis": axis}, data, *parts))
    return [weight for weight in found if weight is not None]


def _in_groups(
    bits: int, q: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, block: int, group: int
) -> QuantizedWeight:
    """A weight [N, K] with scales and zero points per block, which is a multiple of a group."""
    groups = -(-q.shape[1] // group)
    scale, moved = (None if p is None else np.repeat(p, block // group, 1)[:, :groups] for p in (scale, zero))
    exact = np.array_equal(scale.astype(np.float16).astype(np.float32), scale)
    storage = Storage(_FORMS[bits], group, moved is not None, "float16" if exact else "float32")
    return QuantizedWeight(
        storage,
        np.ascontiguousarray(q, dtype=np.uint8),
        np.ascontiguousarray(scale, dtype=storage.scales),
        None if moved is None else np.ascontiguousarray(moved, dtype=np.uint8),
    )


_READERS = {"MatMulNBits": (1, _packed), "DequantizeLinear": (0, _any_way)}
"""Operator -> number of the operand with the integers, and what reads them, their scales and zero points."""
