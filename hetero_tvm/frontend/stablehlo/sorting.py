"""``sort``: the keys that its comparison reads, and the order that follows from them; ``approx_max_k``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from hetero_tvm.frontend.nodes import Untranslatable, onnx_type
from hetero_tvm.frontend.stablehlo.op import Op

_CANONICAL = frozenset({"stablehlo.compare", "stablehlo.select", "stablehlo.constant"})
"""Operators that JAX lays around a key, so that zeros of both signs and all NaN are equal."""
_LESS, _GREATER = ("LT", "LE"), ("GT", "GE")


def sort(op: Op) -> list[str]:
    """Operands in the order of their keys; equal ones stay as they were."""
    axis = int(op.raw.attributes["dimension"])
    block = op.raw.regions[0].blocks[0]
    keys = list(_keys(block.operations[len(block.operations) - 1].operands[0], block))
    count = _asked(op, axis) if len(keys) == 1 else op.shape()[axis]
    wanted = op.const([count])
    order, values = "", ""
    for operand, is_descending in reversed(keys):
        key = op.inputs[operand]
        if op.dtype(operand) == "bool":
            key = op.emit("Cast", key, to=onnx_type("int32"))
        if order:
            key = op.emit("GatherElements", key, order, axis=axis)
        options = {"axis": axis, "largest": int(is_descending), "sorted": 1}
        values, places = op.nodes.several("TopK", key, wanted, count=2, **options)
        order = op.emit("GatherElements", order, places, axis=axis) if order else places
    results = []
    for n, operand in enumerate(op.raw.operands):
        if len(keys) == 1 and keys[0][0] == n and op.dtype(n) != "bool":
            results.append(values)
        elif _counts(operand, axis):
            results.append(op.emit("Cast", order, to=onnx_type(op.dtype(n))))
        else:
            results.append(op.emit("GatherElements", op.inputs[n], order, axis=axis))
    return results


def nearly_largest(op: Op) -> Sequence[str]:
    """The call of ``approx_max_k`` and ``approx_min_k``: the exact elements, as JAX gives them on the CPU.

    Operands are the values, what goes with them (their places), and one element of each.
    """
    options, called = op.text("mhlo.backend_config"), op.text("called_computations")
    found = [re.search(rf"\b{name} = (\d+)", options) for name in ("reduction_dim", "top_k")]
    direction = re.search(r"top_k_([gl])t_", called)
    if None in found or direction is None or len(op.inputs) != 4:
        raise Untranslatable("an approximate selection in a form that JAX does not write")
    axis, count = (int(one[1]) for one in found if one)
    if op.result[axis] != count:
        raise Untranslatable("an approximate selection that is not brought down to k elements")
    sign = {"axis": axis, "largest": int(direction[1] == "g"), "sorted": 1}
    values, places = op.nodes.several("TopK", op.inputs[0], op.const([count]), count=2, **sign)
    return [values, op.emit("GatherElements", op.inputs[1], places, axis=axis)]


def _keys(value: Any, block: Any) -> Iterator[tuple[int, bool]]:
    """Operands that a comparison reads, first the one that decides, and whether the largest comes first.

    JAX writes several keys as ``a < b or (a == b and ...)``.
    """
    raw = _maker(value)
    kind = _kind(raw)
    if kind == "stablehlo.or":
        sides = list(raw.operands)
        strict = [side for side in sides if _kind(_maker(side)) == "stablehlo.compare"]
        ties = [side for side in sides if _kind(_maker(side)) == "stablehlo.and"]
        if len(strict) != 1 or len(ties) != 1:
            raise _unknown()
        (first,) = _keys(strict[0], block)
        inner = list(_maker(ties[0]).operands)
        equal = [side for side in inner if _direction(_maker(side)) == "EQ"]
        rest = [side for side in inner if side not in equal]
        if len(equal) != 1 or len(rest) != 1 or _compared(_maker(equal[0]), block)[0] != first[0]:
            raise _unknown()
        yield first
        yield from _keys(rest[0], block)
        return
    direction = _direction(raw)
    if direction not in (*_LESS, *_GREATER):
        raise _unknown()
    operand, is_swapped = _compared(raw, block)
    yield operand, (direction in _GREATER) != is_swapped


def _compared(raw: Any, block: Any) -> tuple[int, bool]:
    """Operand whose elements are compared, and whether the second comes first."""
    sides = [_argument(value, block) for value in raw.operands]
    low, high = min(sides), max(sides)
    if high != low + 1 or low % 2:
        raise _unknown()
    return low // 2, sides[0] == high


def _argument(value: Any, block: Any) -> int:
    """Number of the one argument that a key follows from."""
    wanted, found, arguments = [value], set(), list(block.arguments)
    while wanted:
        one = wanted.pop()
        if one in arguments:
            found.add(arguments.index(one))
            continue
        raw = _maker(one)
        if _kind(raw) not in _CANONICAL:
            raise _unknown()
        wanted += raw.operands
    if len(found) != 1:
        raise _unknown()
    return found.pop()


def _asked(op: Op, axis: int) -> int:
    """Number of elements that are read of a sorted axis: ``top_k`` is a sort of which the first are taken."""
    most = 1
    for result in op.raw.results:
        for use in result.uses:
            if _kind(use.owner) != "stablehlo.slice":
                return op.shape()[axis]
            begin, end, step = (
                [int(x) for x in use.owner.attributes[name]][axis]
                for name in ("start_indices", "limit_indices", "strides")
            )
            if begin or step != 1:
                return op.shape()[axis]
            most = max(most, end)
    return most


def _counts(value: Any, axis: int) -> bool:
    """Whether a tensor counts along an axis: its order is the order itself."""
    raw = _maker(value)
    return _kind(raw) == "stablehlo.iota" and int(raw.attributes["iota_dimension"]) == axis


def _maker(value: Any) -> Any:
    owner = value.owner
    return getattr(owner, "opview", owner)


def _kind(raw: Any) -> str:
    operation = getattr(raw, "operation", None)
    return "" if operation is None else str(operation.name)


def _direction(raw: Any) -> str:
    if _kind(raw) != "stablehlo.compare":
        return ""
    text = str(raw.attributes["comparison_direction"])
    return next((word for word in (*_LESS, *_GREATER, "EQ", "NE") if word in text.split()[-1]), "")


def _unknown() -> Untranslatable:
    return Untranslatable("a comparison that orders no operands by themselves")
