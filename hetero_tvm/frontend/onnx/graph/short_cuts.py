"""Frequent arithmetic of shapes, without the half millisecond that an evaluator costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from hetero_tvm.frontend.onnx.graph.constants import ConstantPool
from hetero_tvm.frontend.onnx.graph.nodes import refusal


def integer_attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    """An integer attribute, or its default."""
    return next((a.i for a in node.attribute if a.name == name), default)


def fits(node: onnx.NodeProto, shape: Sequence[int | None], pool: ConstantPool) -> bool:
    """Whether an operand of this shape fits the shape that an Expand asks for, as far as it is known.

    ONNX's inference gives it the operand's shape where it does not, too.
    """
    if node.op_type != "Expand" or node.input[1] not in pool:
        return True
    wanted = pool.array(node.input[1]).reshape(-1).tolist()
    pairs = zip(reversed(wanted), reversed(shape), strict=False)
    return len(wanted) <= len(shape) and all(one in (1, size) for one, size in pairs)


def _gather(node: onnx.NodeProto, inputs: list[np.ndarray]) -> list[np.ndarray] | None:
    data, indices = inputs
    axis = integer_attribute(node, "axis", 0)
    if (
        data.ndim == 0
        or indices.size == 0
        or not -data.shape[axis] <= indices.min() <= indices.max() < data.shape[axis]
    ):
        return None
    return [np.take(data, indices, axis=axis)]


def _unsqueeze(node: onnx.NodeProto, inputs: list[np.ndarray]) -> list[np.ndarray] | None:
    if len(inputs) != 2 or inputs[0].ndim != 0 or inputs[1].tolist() != [0]:
        return None  # only scalar -> vector is worth a short cut
    return [inputs[0].reshape(1)]


def _concat(node: onnx.NodeProto, inputs: list[np.ndarray]) -> list[np.ndarray] | None:
    return [np.concatenate(inputs, axis=integer_attribute(node, "axis", 0))]


def _count_up(node: onnx.NodeProto, inputs: list[np.ndarray]) -> None:
    """Refusal of numbers without an end, of which ONNX's inference makes none."""
    start, limit, step = (each.reshape(-1)[0] for each in inputs)
    whole = start.dtype.kind in "iu"
    if step == 0 or not (whole or np.isfinite([start, limit, step]).all()):
        raise refusal(node, f"numbers from {start} to {limit} in steps of {step}")
    distance = int(limit) - int(start) if whole else float(limit) - float(start)
    bound = np.iinfo(start.dtype).max if whole else np.iinfo(np.int64).max * abs(float(step))
    if abs(distance) > bound:
        raise refusal(node, f"numbers from {start} to {limit}, whose distance is too large")


SHORT_CUTS = {"Gather": _gather, "Unsqueeze": _unsqueeze, "Concat": _concat, "Range": _count_up}
"""Results of a node of constants by operator, of those operands that are the usual ones; else None."""
JUDGED = frozenset({"Range", "STFT"})
"""Operators that ONNX's inference makes empty where they contradict themselves."""
