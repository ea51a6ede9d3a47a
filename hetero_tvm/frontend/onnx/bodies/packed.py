"""Weights that an ONNX file brings packed: integers of 4 and 8 bits with a scale per block (MatMulNBits)."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from hetero_tvm.frontend.onnx.bodies.contrib_quantized import unpacked
from hetero_tvm.frontend.stored import StoredModel
from hetero_tvm.ops.decoding.columns import PackedColumns
from hetero_tvm.ops.decoding.storage import GROUPS, QuantizedWeight, Storage

_FORMS = {4: "int4", 8: "int8"}
_INTEGERS = 4
"""``accuracy_level`` from which on what packed weights are multiplied with may be rounded to 8 bits."""


def packed_columns(source: StoredModel | None) -> PackedColumns | None:
    """Columns of the packed weights of a file; None where it has none that a kernel takes as they are."""
    columns = PackedColumns()
    levels = []
    graph = onnx.GraphProto() if source is None else source.proto.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type != "MatMulNBits" or source is None:
            continue
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        names = [*node.input[1:4], "", ""][:3]
        given = [source.array(stored[name]) if name in stored else None for name in names]
        if given[0] is None or given[1] is None or (names[2] and given[2] is None):
            continue  # comes at run time
        weight = _weight(attributes, *given)
        if weight is not None:
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
    groups = -(-width // group)
    parts = [None if p is None else np.repeat(p, block // group, 1)[:, :groups] for p in (scale, zeros)]
    exact = np.array_equal(scale.astype(np.float16).astype(np.float32), scale)
    storage = Storage(_FORMS[bits], group, zeros is not None, "float16" if exact else "float32")
    assert parts[0] is not None
    return QuantizedWeight(
        storage,
        np.ascontiguousarray(q, dtype=np.uint8),
        parts[0].astype(storage.scales),
        None if parts[1] is None else np.ascontiguousarray(parts[1], dtype=np.uint8),
    )
