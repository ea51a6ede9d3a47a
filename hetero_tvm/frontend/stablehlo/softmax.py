"""Softmax, which StableHLO has no operator for: found again in what JAX and others write for it."""

from __future__ import annotations

from typing import Any


def softmax_of(raw: Any) -> tuple[Any, int] | None:
    """Operand and axis of a softmax that ends in this division; None when it is another division.

    The form is ``e / sum(e)`` with ``e = exp(x - max(x))``, both reductions along one axis.
    """
    if _kind(raw) != "stablehlo.divide":
        return None
    numerator = raw.operands[0]
    exponential = _made_by(numerator, "stablehlo.exponential")
    total = _reduction(raw.operands[1], "stablehlo.add")
    if exponential is None or total is None or total[0] != numerator:
        return None
    difference = _made_by(exponential.operands[0], "stablehlo.subtract")
    if difference is None:
        return None
    largest = _reduction(difference.operands[1], "stablehlo.maximum")
    if largest is None or largest != (difference.operands[0], total[1]):
        return None
    return largest


def _kind(raw: Any) -> str:
    return str(raw.operation.name)


def _made_by(value: Any, kind: str) -> Any:
    """Operator of that kind which gives ``value``; None when another does, or none."""
    owner = value.owner
    name = getattr(owner, "name", None)
    return owner.opview if name == kind else None


def _reduction(value: Any, body: str) -> tuple[Any, int] | None:
    """Operand and axis of the reduction whose result ``value`` is, broadcast along that axis again."""
    chain: list[list[int]] = []
    while True:
        if (broadcast := _made_by(value, "stablehlo.broadcast_in_dim")) is not None:
            chain.append([int(axis) for axis in broadcast.attributes["broadcast_dimensions"]])
            value = broadcast.operands[0]
        elif (larger := _made_by(value, "stablehlo.maximum")) is not None and _is_lowest(larger.operands[0]):
            value = larger.operands[1]
        else:
            break
    reduce = _made_by(value, "stablehlo.reduce")
    if reduce is None or len(reduce.results) != 1:
        return None
    inside = [_kind(one) for one in reduce.regions[0].blocks[0].operations]
    axes = [int(axis) for axis in reduce.attributes["dimensions"]]
    if inside[:-1] != [body] or len(axes) != 1:
        return None
    rank = len(reduce.operands[0].type.shape)
    places = list(range(rank - 1))
    for step in reversed(chain):
        places = [step[place] for place in places]
    kept = [axis for axis in range(rank) if axis != axes[0]]
    return (reduce.operands[0], axes[0]) if chain and places == kept else None


def _is_lowest(value: Any) -> bool:
    """Whether a value is minus infinity everywhere."""
    while (broadcast := _made_by(value, "stablehlo.broadcast_in_dim")) is not None:
        value = broadcast.operands[0]
    constant = _made_by(value, "stablehlo.constant")
    if constant is None or not constant.attributes["value"].is_splat:
        return False
    number = getattr(constant.attributes["value"].get_splat_value(), "value", 0)
    return float(number) == float("-inf")
