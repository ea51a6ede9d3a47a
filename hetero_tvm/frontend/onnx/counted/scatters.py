"""Scatters of counted rows and elements: what does not count changes nothing."""

from __future__ import annotations

import math

from onnx import TensorProto

from hetero_tvm.frontend.onnx.counted.tensors import Count, Step, Unfit


def scatter_nd(b: Step) -> None:
    """ScatterND of counted rows: what does not count is written as what lies there.

    There are as many rows of updates as of indices, so one number tells of the other (tokens that stand for
    images, and features); that it does is checked when the model runs.
    """
    kind = b.attributes.get("reduction", b"none")
    kinds = (b"none", b"add", "none", "add")
    own, batch = b.axes(1), len(b.extents(1)) - 1
    if kind in kinds and batch > 1 and len(own) == 1 and not b.axes(0) and own == b.axes(2):
        ((axis, count),) = own.items()
        if axis < batch:
            _scatter_of_batches(b, axis, count)
            return
    if b.axes(0) or set(b.axes(1)) != {0} or set(b.axes(2)) - {0} or len(b.extents(1)) != 2:
        raise Unfit("not its rows of indices and updates alone are counted")
    if kind not in kinds:
        raise Unfit("its reduction is not a sum")
    (count,), rank = b.axes(1).values(), len(b.extents(2))
    rows, updates = b.masked(1, 0), b.input(2)
    if b.axes(2) != b.axes(1):
        most, given = b.extents(2)[0], b.axes(2).get(0)
        equal = b.op("Equal", count.name, b.ints(most) if given is None else given.name)
        rows = b.guard(rows, equal, what="as many indices as updates", dtype="int64")
        least = min(count.most, most)
        if not least:
            raise Unfit("there are no updates")
        rows = rows if least == count.most else b.cut(rows, 0, 0, least)
        updates = updates if least == most else b.cut(updates, 0, 0, least)
        count = Count(count.key, count.name, least, count.factor)
    _write(b, rows, updates, b.mask(count, 0, 2), b.mask(count, 0, rank), count)


def _scatter_of_batches(b: Step, axis: int, count: Count) -> None:
    """Indices [..., count, ..., R] as rows [all, R]: the first one counts, where any does."""
    extents, rest = b.extents(1), b.extents(2)[len(b.extents(1)) - 1 :]
    batch, total = extents[:-1], math.prod(extents[:-1])
    rows = b.op("Reshape", b.masked(1, 0), b.ints([total, extents[-1]]))
    updates = b.op("Reshape", b.input(2), b.ints([total, *rest]))
    held = b.op("Expand", b.mask(count, axis, len(batch)), b.ints(batch))
    masks = (b.op("Reshape", held, b.ints([total] + [1] * n)) for n in (1, len(rest)))
    _write(b, rows, updates, *masks, count)


def _write(b: Step, rows: str, updates: str, held_rows: str, held_updates: str, count: Count) -> None:
    """The node with ``rows`` and ``updates``; masks say which of both count."""
    if b.attributes.get("reduction", b"none") in (b"add", "add"):
        b.again({1: rows, 2: b.op("Where", held_updates, updates, b.const(0, b.dtype(b.input(2))))})
        return
    # Rows that do not count write what the first one writes, or what is there where none counts.
    zero = b.ints([0])
    first = b.op("Gather", rows, zero, axis=0)
    none = b.op("Equal", count.name, b.ints(0))
    there = b.op("GatherND", b.input(0), first)
    written = b.op("Where", none, there, b.op("Gather", updates, zero, axis=0))
    places = b.op("Where", held_rows, rows, first)
    b.again({1: places, 2: b.op("Where", held_updates, updates, written)})


def scatter_elements(b: Step) -> None:
    """ScatterElements of counted indices: what does not count goes to a row behind the data.

    Detectors put the features of each level's boxes back to their places so.
    """
    extents, own = b.extents(0), b.axes(1)
    axis = int(b.attributes.get("axis", 0)) % len(extents)
    if b.axes(2) != own:
        raise Unfit("its indices and updates have counts that need not be equal")
    places = b.places(1, b.axes(0).get(axis))
    b.mark(0, b.axes(0))
    if not own:
        if places != b.input(1):
            b.again({1: places})
        return
    places = b.op("Cast", places, to=TensorProto.INT64)
    for a, count in own.items():
        places = b.op("Where", b.mask(count, a, len(b.extents(1))), places, b.ints(extents[axis]))
    data = b.op("Concat", b.input(0), b.cut(b.input(0), axis, 0, 1), axis=axis)
    y = b.op("ScatterElements", data, places, b.input(2), **{**b.attributes, "axis": axis})
    b.finish(0, b.cut(y, axis, 0, extents[axis]))
