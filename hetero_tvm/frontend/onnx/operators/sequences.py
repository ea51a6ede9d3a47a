"""Steps of sequences of tensors, which lie in the graph as tuples: positions count from either end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero_tvm.frontend.onnx.operators.common import Inputs
from hetero_tvm.host.tvm import Expr, relax, tvm


def _inserted(inputs: Inputs, attrs: dict[str, Any]) -> Expr:
    """The sequence with a tensor more; TVM's converter takes -1 for the place behind the last, which ONNX
    has before it."""
    elements = _elements(inputs[0])
    place = len(elements) if len(inputs) < 3 or inputs[2] is None else _place(inputs[2], len(elements), 1)
    elements.insert(place, inputs[1])
    return relax.Tuple(elements)


def _erased(inputs: Inputs, attrs: dict[str, Any]) -> Expr:
    """The sequence without one of its tensors, the last one by default."""
    elements = _elements(inputs[0])
    last = len(elements) - 1
    del elements[last if len(inputs) < 2 or inputs[1] is None else _place(inputs[1], len(elements), 0)]
    return relax.Tuple(elements)


def _element(inputs: Inputs, attrs: dict[str, Any]) -> Expr:
    """One of the tensors, counted from either end."""
    elements = _elements(inputs[0])
    return elements[_place(inputs[1], len(elements), 0)]


def _length(inputs: Inputs, attrs: dict[str, Any]) -> Expr:
    """Number of tensors."""
    return relax.const(len(_elements(inputs[0])), "int64")


def _joined(inputs: Inputs, attrs: dict[str, Any]) -> Expr:
    """The tensors along an axis, or along a new one."""
    axis, elements = int(attrs.get("axis", 0)), _elements(inputs[0])
    if attrs.get("new_axis", 0):
        elements = [relax.op.expand_dims(element, axis) for element in elements]
    return relax.op.concat(elements, axis)


def _elements(sequence: Expr) -> list[Expr]:
    """The tensors of a sequence, which may be bound; TVM's split into one part gives a tensor."""
    if isinstance(sequence, relax.Tuple):
        return list(sequence)
    if isinstance(sequence.ty, relax.TensorType):
        return [sequence]
    return [relax.TupleGetItem(sequence, n) for n in range(len(sequence.ty.fields))]


def _place(position: Expr, count: int, behind: int) -> int:
    """A position counted from the beginning; ``behind`` is 1 where that behind the last is one."""
    if not isinstance(position, tvm.ir.GenericConst):
        raise ValueError("its position comes at run time")
    place = int(position.value.numpy().reshape(()))
    if not -count <= place < count + behind:
        raise IndexError(f"position {place} lies outside a sequence of {count}")
    return place + count if place < 0 else place


SEQUENCES: dict[str, Callable[[Inputs, dict[str, Any]], Expr | None]] = {
    "ConcatFromSequence": _joined,
    "SequenceAt": _element,
    "SequenceErase": _erased,
    "SequenceInsert": _inserted,
    "SequenceLength": _length,
}
"""Operator -> our converter."""
