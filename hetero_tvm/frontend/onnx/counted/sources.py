"""Operators that give as many elements as the values of their operands say, written with padded results.

A new one is one function and one entry in ``SOURCES``.  Padding holds zeros, or elements of the operand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from hetero_tvm.frontend.onnx.bodies import suppression
from hetero_tvm.frontend.onnx.counted.tensors import Count, Step, Unfit


def non_zero(b: Step) -> None:
    """NonZero: the coordinates of the elements that are not zero, int64 [rank, count]."""
    given = b.extents(0)
    if not given:
        raise Unfit("its operand is a scalar")
    x = b.op("Reshape", b.masked(0, 0), b.ints([-1]))
    flags = x if b.dtype(b.input(0)) == "bool" else _not_zero(b, x)
    places, count = b.found(flags, math.prod(given), f"true({b.input(0)})")
    strides = np.array([math.prod(given[n + 1 :]) for n in range(len(given))])[:, None]
    columns = b.op("Div", b.op("Unsqueeze", places, b.ints([0])), b.ints(np.maximum(strides, 1)))
    b.finish(0, b.op("Mod", columns, b.ints(np.maximum(np.array(given), 1)[:, None])))
    b.mark(0, {1: count})


def _not_zero(b: Step, x: str) -> str:
    return b.op("Not", b.op("Equal", x, b.const(0, b.dtype(b.input(0)))))


def compress(b: Step) -> None:
    """Compress: the elements, or slices along an axis, for which a condition holds."""
    flat = "axis" not in b.attributes
    given = b.extents(0)
    axis = 0 if flat else int(b.attributes["axis"]) % len(given)
    if flat and b.axes(0) and len(given) > 1:
        raise Unfit("its operand is counted along an axis that is flattened")
    x = b.op("Reshape", b.input(0), b.ints([-1])) if flat else b.input(0)
    size = math.prod(given) if flat else given[axis]
    condition, length = b.masked(1, False), min(b.extents(1)[0], size)
    if length < b.extents(1)[0]:
        condition = b.cut(condition, 0, 0, length)
    places, count = b.found(condition, length, f"true({b.input(1)})")
    b.finish(0, b.op("Gather", x, places, axis=axis))
    b.mark(0, {**{a: c for a, c in b.axes(0).items() if a != axis}, axis: count})


def suppressed(b: Step) -> None:
    """NonMaxSuppression: the boxes that are taken, int64 [count, 3]."""
    scores = b.masked(1, np.finfo(np.float32).min) if b.axes(1) else b.input(1)
    if b.axes(0) and not b.axes(1):
        raise Unfit("as many boxes as run time says have a fixed number of scores")
    rounds = suppression.most_rounds(b)
    if not b.input(2) or not rounds:  # none, when no number is given
        b.finish(0, b.ints(np.zeros((0, 3))))
        return
    table, number, length = suppression.kept(b, scores, rounds)
    b.finish(0, table)
    b.mark(0, {0: Count(f"taken({b.wants(0)})", number, length)})


def unique(b: Step) -> None:
    """Unique of all elements, in order, with their first places, the inverse and how often each comes."""
    if "axis" in b.attributes and len(b.extents(0)) > 1:
        raise Unfit("it compares whole slices along an axis")
    if b.axes(0):
        raise Unfit("its operand is counted")
    length, dtype = math.prod(b.extents(0)), b.dtype(b.input(0))
    if not length:
        raise Unfit("its operand is empty")
    x = b.op("Reshape", b.input(0), b.ints([-1]))
    if dtype == "bool":
        x = b.op("Cast", x, to=TensorProto.INT32)
    values = b.op("TopK", x, b.ints([length]), axis=0, largest=0, sorted=1)
    order = f"{values}_places"
    b.nodes[-1].output.append(order)
    starts = _starts(b, values, length)
    group = b.op("Sub", b.op("CumSum", b.op("Cast", starts, to=TensorProto.INT64), b.ints(0)), b.ints(1))
    inverse = b.op("ScatterElements", b.ints(np.zeros(length)), order, group)
    # Equal values keep their order of places under no rule: the first place is the least of a group.
    first = b.op("ScatterElements", b.ints(np.full(length, length)), group, order, reduction="min")
    often = b.op("ScatterElements", b.ints(np.zeros(length)), group, b.ints(np.ones(length)), reduction="add")
    heads, count = b.found(starts, length, f"unique({b.input(0)})")
    distinct = b.op("Gather", values, heads, axis=0)
    if not b.attributes.get("sorted", 1):
        distinct, first, often, inverse = _by_first(b, distinct, first, often, inverse, length)
    if dtype == "bool":
        distinct = b.op("Cast", distinct, to=TensorProto.BOOL)
    first = b.op("Min", first, b.ints(length - 1))
    for index, result in enumerate((distinct, first, inverse, often)):
        b.end(index, result)
        if index != 2:
            b.mark(index, {0: count})
            b.counted.axes[result] = {0: count}


def _starts(b: Step, values: str, length: int) -> str:
    """Whether each of sorted values is another than the one before."""
    true = b.const([True], "bool")
    if length == 1:
        return true
    same = b.op("Equal", b.cut(values, 0, 1, length), b.cut(values, 0, 0, length - 1))
    return b.op("Concat", true, b.op("Not", same), axis=0)


def _by_first(
    b: Step, distinct: str, first: str, often: str, inverse: str, length: int
) -> tuple[str, str, str, str]:
    """Facts of distinct values in the order of their first places; and the inverse for it."""
    first = b.op("TopK", first, b.ints([length]), axis=0, largest=0, sorted=1)
    order = f"{first}_places"
    b.nodes[-1].output.append(order)
    rank = b.op("ScatterElements", b.ints(np.zeros(length)), order, b.ints(np.arange(length)))
    taken = [b.op("Gather", x, order, axis=0) for x in (distinct, often)]
    return taken[0], first, taken[1], b.op("Gather", rank, inverse, axis=0)


def top_k(b: Step) -> None:
    """TopK of a number that comes at run time: all that there could be, of which so many count."""
    given, own = b.extents(0), b.axes(0)
    axis = int(b.attributes.get("axis", -1)) % len(given)
    rest = {a: c for a, c in own.items() if a != axis}
    known = b.elements(1)
    most: int | Count = known[0] if known is not None else _given_number(b, given[axis])
    x, enough = b.input(0), None
    if axis in own:
        x = b.masked(0, b.lowest(0) if b.attributes.get("largest", 1) else b.highest(0), {axis})
        number = b.ints(most) if isinstance(most, int) else most.name
        enough = b.op("LessOrEqual", number, own[axis].name)
    elif isinstance(most, Count):
        enough = b.op("LessOrEqual", most.name, b.ints(given[axis]))
    if enough is not None:
        x = b.guard(x, enough, what="k", dtype=b.dtype(b.input(0)))
    size = min(most if isinstance(most, int) else most.most, given[axis])
    b.again({0: x, 1: b.ints([size])})
    if isinstance(most, Count):
        rest[axis] = replace(most, most=size)
    for index in (0, 1):
        b.mark(index, rest)


def _given_number(b: Step, extent: int) -> Count:
    """The count that a number from outside is."""
    number = b.op("Reshape", b.whole(b.input(1)), b.ints([]))
    number = b.guard(number, b.op("GreaterOrEqual", number, b.ints(0)), what="k", dtype="int64")
    return Count(f"value({b.input(1)})", number, extent)


SOURCES: dict[str, Callable[[Step], None]] = {
    "Compress": compress,
    "NonMaxSuppression": suppressed,
    "NonZero": non_zero,
    "TopK": top_k,
    "Unique": unique,
}
"""Operator -> what writes it out where no shape of its result is declared."""
