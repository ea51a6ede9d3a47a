"""Softmax and means, which StableHLO has no operators for: found again in what JAX and others write."""

from __future__ import annotations

import math
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


def mean_of(raw: Any) -> tuple[Any, list[int]] | None:
    """Operand and axes of the mean that this product or quotient is; None when it is none.

    A sum along axes, kept as axes of length 1 or not, times 1 / count, or divided by the count.
    """
    if _kind(raw) not in ("stablehlo.multiply", "stablehlo.divide"):
        return None
    number = _splat(raw.operands[1])
    value = raw.operands[0]
    broadcast = _made_by(value, "stablehlo.broadcast_in_dim")
    if broadcast is not None:
        value = broadcast.operands[0]
        if math.prod(broadcast.results[0].type.shape) != math.prod(value.type.shape):
            return None
    reduce = _made_by(value, "stablehlo.reduce")
    if reduce is None or number is None or len(reduce.results) != 1:
        return None
    inside = [_kind(one) for one in reduce.regions[0].blocks[0].operations]
    if inside[:-1] != ["stablehlo.add"] or _splat(reduce.operands[1]) != 0.0:
        return None
    axes = [int(axis) for axis in reduce.attributes["dimensions"]]
    count = math.prod(reduce.operands[0].type.shape[axis] for axis in axes)
    factor = number * count if _kind(raw) == "stablehlo.multiply" else count / (number or math.inf)
    is_float = str(reduce.operands[0].type.element_type) in ("f32", "f64")
    is_mean = axes and is_float and abs(factor - 1) < _ONE_WITHIN  # without axes ONNX's mean is of all
    return (reduce.operands[0], axes) if is_mean else None


_ONE_WITHIN = 1e-6
"""1 / count is rounded to float32."""


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
    return _splat(value) == -math.inf


def _splat(value: Any) -> float | None:
    """The number that a constant is everywhere; None for what is no such constant."""
    while (spread := _passed_on(value)) is not None:
        value = spread
    constant = _made_by(value, "stablehlo.constant")
    if constant is None or not constant.attributes["value"].is_splat:
        return None
    return float(getattr(constant.attributes["value"].get_splat_value(), "value", math.nan))


def _passed_on(value: Any) -> Any:
    """Source of a copy: spread, or of another type (a size, once it is known); None for what is no copy."""
    for kind in ("stablehlo.broadcast_in_dim", "stablehlo.convert"):
        if (made := _made_by(value, kind)) is not None:
            return made.operands[0]
    return None
