"""Slice, Pad and selections of elements whose places come at run time: lookups by computed indices.

How many elements there are is promised (see ``promised.py``); which, the values say.
"""

from __future__ import annotations

import math

import numpy as np

from hetero_tvm.frontend.onnx.bodies.promised import PromisedBody
from hetero_tvm.frontend.onnx.graph.body import as_text


def slices(b: PromisedBody) -> bool:
    """Slice from starts, in steps, along axes that come at run time."""
    given, wanted, count = b.shape(b.input(0)), b.promised(), b.shape(b.input(1))
    if given is None or wanted is None or count is None:
        return False
    if 0 in wanted:
        b.end(0, b.const(np.zeros(wanted), b.dtype(b.input(0))))
        return True
    rank, extents = len(given), b.ints(given)
    starts = _per_axis(b, 1, b.ints([0] * rank), 3, rank, count[0])
    ends = _per_axis(b, 2, extents, 3, rank, count[0])
    one = b.ints(1)
    steps = _per_axis(b, 4, b.ints([1] * rank), 3, rank, count[0]) if b.input(4) else b.ints([1] * rank)
    forward = b.op("Greater", steps, b.ints(0))
    last = b.op("Sub", extents, one)
    zero, minus = b.ints([0] * rank), b.ints([-1] * rank)
    start = b.op("Max", b.op("Min", b.from_end(starts, extents), b.op("Where", forward, extents, last)), zero)
    end = b.op("Min", b.from_end(ends, extents), b.op("Where", forward, extents, last))
    end = b.op("Max", end, b.op("Where", forward, zero, minus))
    span = b.op("Add", b.op("Sub", end, start), b.op("Sub", steps, b.op("Sign", steps)))
    counted = b.op("Div", span, steps)
    x = b.guard(b.input(0), b.op("Equal", counted, b.ints(wanted)))
    for axis, size in enumerate(wanted):
        stride = b.op("Mul", b.ints(np.arange(size)), b.at(steps, axis))
        x = b.op("Gather", x, b.op("Add", stride, b.at(start, axis)), axis=axis)
    b.end(0, x)
    return True


def _per_axis(b: PromisedBody, index: int, default: str, axes: int, rank: int, count: int) -> str:
    """Input number ``index`` as one value for every axis; ``default`` has those that it does not name."""
    values = b.whole(b.input(index))
    if not b.input(axes):
        if count == rank:
            return values
        places = b.ints(np.arange(count))
    else:
        places = b.from_end(b.whole(b.input(axes)), rank)
    return b.op("ScatterElements", default, places, values, axis=0)


def pad(b: PromisedBody) -> bool:
    """Pad by amounts that come at run time."""
    given, wanted, count = b.shape(b.input(0)), b.promised(), b.shape(b.input(1))
    if given is None or wanted is None or count is None or 0 in given:
        return False
    mode, rank = as_text(b.attributes.get("mode", "constant")), len(given)
    pads, half = b.whole(b.input(1)), count[0] // 2
    before, after = b.cut(pads, 0, 0, half), b.cut(pads, 0, half, 2 * half)
    if b.input(3):
        places = b.from_end(b.whole(b.input(3)), rank)
        none = b.ints([0] * rank)
        before, after = (b.op("ScatterElements", none, places, side, axis=0) for side in (before, after))
    total = b.op("Add", b.op("Add", before, after), b.ints(given))
    x = b.guard(b.input(0), b.op("Equal", total, b.ints(wanted)))
    value = b.op("Reshape", b.input(2), b.ints([])) if b.input(2) else b.const(0, b.dtype(b.input(0)))
    for axis, (size, extent) in enumerate(zip(wanted, given, strict=True)):
        place = b.op("Sub", b.ints(np.arange(size)), b.at(before, axis))
        last = b.ints(extent - 1)
        if mode == "reflect" and extent > 1:
            turn = b.op("Mod", place, b.ints(2 * (extent - 1)))
            place = b.op("Sub", last, b.op("Abs", b.op("Sub", turn, last)))
        elif mode == "wrap":
            place = b.op("Mod", place, b.ints(extent))
        inside = b.op("Max", b.op("Min", place, last), b.ints(0))
        x = b.op("Gather", x, inside, axis=axis)
        if mode == "constant":
            valid = b.op("Reshape", b.op("Equal", place, inside), b.ints(_along(axis, rank)))
            x = b.op("Where", valid, x, value)
    b.end(0, x)
    return True


def _along(axis: int, rank: int) -> list[int]:
    """Shape that lays a vector along one axis."""
    return [-1 if n == axis else 1 for n in range(rank)]


def compress(b: PromisedBody) -> bool:
    """Compress by a condition that comes at run time, of which so many elements hold as are promised."""
    given, wanted, length = b.shape(b.input(0)), b.promised(), b.shape(b.input(1))
    if given is None or wanted is None or length is None:
        return False
    flat = "axis" not in b.attributes
    axis = 0 if flat else int(b.attributes["axis"])
    x = b.op("Reshape", b.input(0), b.ints([-1])) if flat else b.input(0)
    places = _true_places(b, b.input(1), length[0], wanted[axis])
    b.end(0, b.op("Gather", x, places, axis=axis))
    return True


def non_zero(b: PromisedBody) -> bool:
    """NonZero: the coordinates of so many elements as are promised."""
    given, wanted = b.shape(b.input(0)), b.promised()
    if given is None or wanted is None or not given:
        return False
    flat = b.op("Reshape", b.input(0), b.ints([-1]))
    if b.dtype(b.input(0)) != "bool":
        flat = b.op("Not", b.op("Equal", flat, b.const(0, b.dtype(b.input(0)))))
    places = _true_places(b, flat, math.prod(given), wanted[1])
    strides = [math.prod(given[n + 1 :]) for n in range(len(given))]
    columns = b.op("Div", b.op("Unsqueeze", places, b.ints([0])), b.ints(np.array(strides)[:, None]))
    b.end(0, b.op("Mod", columns, b.ints(np.array(given)[:, None])))
    return True


def _true_places(b: PromisedBody, flags: str, length: int, count: int) -> str:
    """Places of the elements of a boolean vector that hold, in order; ``count`` of them."""
    from onnx import TensorProto

    if not count:
        return b.ints(np.zeros(0))
    number = b.op("Cast", flags, to=TensorProto.INT64)
    found = b.reduce("ReduceSum", number, [0], 0, axes_as_input=13)
    # What holds early is largest, so the greatest are the places in order.
    key = b.op("Mul", number, b.ints(np.arange(length, 0, -1)))
    _, places = b.op("TopK", key, b.ints([count]), axis=0), ""
    places = f"{b.nodes[-1].output[0]}_places"
    b.nodes[-1].output.append(places)
    return b.guard(places, b.op("Equal", found, b.ints(count)), what="how many elements hold", dtype="int64")
