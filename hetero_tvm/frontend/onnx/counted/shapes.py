"""Operators around shapes of counted tensors: what reads them, computes with them, and takes them.

``Shape`` of a counted tensor is computed when the model runs; what its elements are is known beforehand, as
numbers and counts.  Where they decide a shape, the result is padded and counted in its turn.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import numpy_helper

from hetero_tvm.frontend.onnx.counted.tensors import Axes, Count, Step, Unfit, Value


def shape(b: Step) -> None:
    """Shape of a counted tensor."""
    extents, axes = b.extents(0), b.axes(0)
    start, end = b.attributes.get("start", 0), b.attributes.get("end", len(extents))
    values = tuple(axes.get(n, extent) for n, extent in enumerate(extents))[slice(start, end)]
    b.finish(0, b.as_vector(values) if values else b.ints([]))
    b.note(values)


def size(b: Step) -> None:
    """Size of a counted tensor."""
    extents, axes = b.extents(0), b.axes(0)
    if len(axes) > 1:
        raise Unfit("several of its extents come at run time")
    ((axis, count),) = axes.items()
    total = b.times(count, math.prod(extents) // max(extents[axis], 1))
    b.finish(0, b.op("Identity", total.name))
    b.note((total,))


def whole(b: Step, index: int, what: str) -> list[Value]:
    """Elements of an input that decides a shape."""
    found = b.elements(index)
    if found is None:
        raise Unfit(f"its {what} come at run time, and are not the extents of a tensor")
    return list(found)


def padded(values: list[Value]) -> list[int]:
    """The values with counts replaced by the most that they may be."""
    return [value.most if isinstance(value, Count) else value for value in values]


def counts(values: list[Value]) -> Axes:
    """Counts among the values, by position."""
    return {axis: value for axis, value in enumerate(values) if isinstance(value, Count)}


def constant_of_shape(b: Step) -> None:
    """ConstantOfShape: a constant, counted."""
    wanted = whole(b, 0, "extents")
    tensor = b.attributes.get("value")
    value = numpy_helper.to_array(tensor) if tensor is not None else np.zeros(1, np.float32)
    b.finish(0, b.const(np.full(padded(wanted), value.reshape(-1)[0]), value.dtype.name))
    b.mark(0, counts(wanted))


def expand(b: Step) -> None:
    """Expand to extents that may be counts."""
    given, wanted = b.extents(0), whole(b, 1, "extents")
    rank = max(len(given), len(wanted))
    own = {axis + rank - len(given): count for axis, count in b.axes(0).items()}
    given = (1,) * (rank - len(given)) + given
    wanted = [1] * (rank - len(wanted)) + wanted
    axes = {}
    for axis, (have, want) in enumerate(zip(given, wanted, strict=True)):
        count = own.get(axis)
        if isinstance(want, Count):
            if count not in (None, want) or (count is None and have != 1):
                raise Unfit("it expands a tensor of another count")
            axes[axis] = want
        elif count is not None:
            if want != 1:
                raise Unfit("it expands along an axis that is counted")
            axes[axis] = count
    b.again({1: b.ints([max(h, p) for h, p in zip(given, padded(wanted), strict=True)])})
    b.mark(0, axes)


def tile(b: Step) -> None:
    """Tile along axes that are not counted."""
    repeats = b.numbers(1, "repeats")
    if any(repeats[axis] != 1 for axis in b.axes(0)):
        raise Unfit("it repeats a tensor along an axis that is counted")
    b.mark(0, b.axes(0))


def count_up(b: Step) -> None:
    """Range from 0 in steps of 1 up to a count."""
    values = [b.elements(n) for n in range(3)]
    if any(v is None for v in values):
        raise Unfit("its limits come at run time")
    start, limit, delta = (v[0] for v in values if v)
    if not isinstance(limit, Count) or start != 0 or delta != 1:
        raise Unfit("it does not count from 0 in steps of 1")
    b.finish(0, b.const(np.arange(limit.most), b.dtype(b.input(1))))
    b.mark(0, {0: limit})


def slices(b: Step) -> None:
    """Slice, of which the end may be a count."""
    extents, own = b.extents(0), dict(b.axes(0))
    starts, ends = whole(b, 1, "starts"), whole(b, 2, "ends")
    axes = b.numbers(3, "axes") if b.input(3) else list(range(len(starts)))
    steps = b.numbers(4, "steps") if b.input(4) else [1] * len(starts)
    rank, changed = len(extents), [*ends]
    for n, (axis, start, end, step) in enumerate(zip(axes, starts, ends, steps, strict=True)):
        axis %= rank
        count = own.get(axis)
        if count is None and not isinstance(end, Count) and not isinstance(start, Count):
            continue
        if step != 1 or isinstance(start, Count) or start < 0:
            raise Unfit("it cuts a counted axis from its end, or in steps")
        if isinstance(end, Count):
            if count is not None and count != end:
                end = b.lesser(count, end)
            if count is None and end.most > extents[axis]:
                end = b.least(end, extents[axis])
            own[axis] = b.less(end, start)
            changed[n] = end.most
            continue
        if end < 0:
            raise Unfit("it cuts a counted axis from its end")
        own[axis] = b.less(b.least(count, end), start)  # type: ignore[arg-type]
        changed[n] = min(end, extents[axis])
    if b.nodes or any(isinstance(end, Count) for end in ends):
        b.again({2: b.ints(padded(changed))})
    if any(count.most == 0 for count in own.values()):
        raise Unfit("nothing is left of a counted axis")
    b.mark(0, own)


def reshape(b: Step) -> None:
    """Reshape that keeps, joins or divides counted axes.

    What does not count of an axis stays behind what does, where only axes behind it are joined to it; else
    the elements that count are brought together.
    """
    extents, own = b.extents(0), b.axes(0)
    if b.node.op_type == "Flatten":
        at = int(b.attributes.get("axis", 1))
        at += len(extents) if at < 0 else 0
        wanted: list[Value] = [-1 if any(a < at for a in own) else math.prod(extents[:at])]
        wanted.append(-1 if wanted[0] != -1 else math.prod(extents[at:]))
        if any(a < at for a in own) and any(a >= at for a in own):
            raise Unfit("two counted axes are kept apart")
    else:
        wanted = whole(b, 1, "extents")
        if not b.attributes.get("allowzero", 0):
            wanted = [own.get(n, extents[n]) if v == 0 else v for n, v in enumerate(wanted)]
    if not own:
        _filled(b, wanted)
        return
    total = math.prod(extents)
    rest = math.prod(value for value in padded(wanted) if value != -1)
    if -1 in wanted and (not rest or total % rest):
        raise Unfit("the extents do not fit the largest number of elements")
    out = [total // rest if value == -1 else value for value in padded(wanted)]
    if math.prod(out) != total:
        raise Unfit("the extents do not fit the largest number of elements")
    open_axes = [n for n, value in enumerate(wanted) if value == -1 or isinstance(value, Count)]
    axes: dict[int, Count] = {}
    for axis, count in own.items():
        lead = math.prod(extents[:axis])
        place = next((n for n in open_axes if n not in axes and math.prod(out[:n]) == lead), None)
        if place is None:
            if len(own) == 1 and len(open_axes) == 1 and math.prod(out) == out[open_axes[0]] * rest:
                _brought_together(b, axis, count, out, open_axes[0])
                return
            raise Unfit("it joins a counted axis with axes before it")
        inner, outer = math.prod(extents[axis + 1 :]), math.prod(out[place + 1 :])
        if inner % outer == 0:
            axes[place] = b.times(count, inner // outer)
        elif outer % inner == 0:
            axes[place] = b.over(count, outer // inner)
        else:
            raise Unfit("it divides a counted axis into parts that do not fit")
    b.again_as("Reshape", {0: b.input(0), 1: b.ints(out)})
    b.mark(0, axes)


def _filled(b: Step, wanted: list[Value]) -> None:
    """A Reshape of a tensor of fixed shape to the extents of a counted one: all elements have to count."""
    counted, out = counts(wanted), padded(wanted)
    if len(counted) != 1 or -1 in out or math.prod(out) != math.prod(b.extents(0)):
        raise Unfit("a tensor of fixed shape gets the extents of a counted one, which holds another number")
    for count in counted.values():
        x = b.guard(b.input(0), b.op("Equal", count.name, b.ints(count.most)))
        b.again_as("Reshape", {0: x, 1: b.ints(out)})
    b.mark(0, counted)


def _brought_together(b: Step, axis: int, count: Count, out: list[int], place: int) -> None:
    """A Reshape that joins a counted axis with axes before it: what counts comes first."""
    extents = b.extents(0)
    if math.prod(out[:place]) != 1:
        raise Unfit("it joins a counted axis with axes before it")
    inner, outer = math.prod(extents[axis + 1 :]), math.prod(out[place + 1 :])
    if inner % outer:
        raise Unfit("it divides a counted axis into parts that do not fit")
    rows = math.prod(extents) // outer
    full = b.op("Expand", b.mask(count, axis, len(extents)), b.ints(extents))
    flags = b.op("Reshape", full, b.ints([rows, outer]))
    places, _ = b.found(b.op("Reshape", b.cut(flags, 1, 0, 1), b.ints([-1])), rows, "")
    total = b.times(count, rows // max(count.most, 1))
    table = b.op("Reshape", b.input(0), b.ints([rows, outer]))
    b.finish(0, b.op("Reshape", b.op("Gather", table, places, axis=0), b.ints(out)))
    b.mark(0, {place: total})


# ---- whole numbers ----------------------------------------------------------------------------


def whole_numbers(b: Step) -> None:
    """Elements of the result of an operator on shapes; without any where they are not known."""
    found = _evaluated(b)
    if found is None:
        return
    b.note(found)
    numbers = [value for value in found if isinstance(value, int)]
    extents = b.shape(b.wants(0))
    if len(numbers) == len(found) and extents is not None and math.prod(map(int, extents)) == len(found):
        # Operators that know nothing of counts read constants: Range, up to a number of classes.
        array = np.array(numbers, b.dtype(b.wants(0))).reshape(extents)
        b.op("Constant", value=numpy_helper.from_array(array), output=b.wants(0))


def _evaluated(b: Step) -> tuple[Value, ...] | None:
    kind, first = b.node.op_type, b.elements(0)
    if first is None:
        return None
    if kind in ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape"):
        return first
    if kind == "Concat":
        parts = [b.elements(n) for n in range(len(b.node.input))]
        return None if any(p is None for p in parts) else tuple(v for part in parts if part for v in part)
    if kind == "Gather":
        places = b.elements(1)
        if places is None or any(isinstance(p, Count) or not -len(first) <= p < len(first) for p in places):
            return None
        return tuple(first[p] for p in places if isinstance(p, int))
    if kind == "Slice":
        bounds = [b.elements(n) for n in range(1, len(b.node.input)) if n != 3]
        if any(v is None or isinstance(v[0], Count) for v in bounds):
            return None
        part = slice(*(v[0] for v in bounds if v))
        table = _table(b, first)
        if table is None or table.ndim == 1:
            return first[part]
        axes = b.elements(3)
        if axes is None or len(axes) != 1 or isinstance(axes[0], Count):
            return None
        return tuple(table[(slice(None),) * (axes[0] % table.ndim) + (part,)].reshape(-1))
    if kind == "Transpose":
        table = _table(b, first)
        return None if table is None else tuple(table.transpose(b.attributes.get("perm")).reshape(-1))
    operands = [first, *(b.elements(n) for n in range(1, len(b.node.input)))]
    if len(operands) != (3 if kind == "Where" else 2) or kind not in _ON_ELEMENTS or None in operands:
        return None
    width = max(len(values) for values in operands if values is not None)
    if any(len(values) not in (1, width) for values in operands if values is not None):
        return None
    rows = [[values[n % len(values)] for values in operands if values is not None] for n in range(width)]
    results = [_chosen(*row) if kind == "Where" else _arithmetic(b, kind, *row) for row in rows]
    return None if any(r is None for r in results) else tuple(r for r in results if r is not None)


def _table(b: Step, values: tuple[Value, ...]) -> np.ndarray | None:
    """Elements of an input in their places along its axes, where those are known."""
    extents = b.shape(b.input(0))
    known = [extent for extent in extents or () if extent is not None]
    if extents is None or len(known) != len(extents) or math.prod(known) != len(values):
        return None
    table = np.empty(len(values), object)
    table[:] = values
    return table.reshape(known)


_ON_ELEMENTS = ("Add", "Sub", "Mul", "Div", "Min", "Max", "Equal", "Where")


def _chosen(condition: Value, x: Value, y: Value) -> Value | None:
    """Result of Where: PyTorch's exporter compares extents with -1 before it expands a tensor to them."""
    return None if isinstance(condition, Count) else x if condition else y


def _arithmetic(b: Step, kind: str, x: Value, y: Value) -> Value | None:
    """Result of arithmetic with a count, where it is a count again; of Equal 1 or 0."""
    if kind == "Equal":
        is_known = (
            x == y or isinstance(x, int) and (isinstance(y, int) or x < 0) or isinstance(y, int) and y < 0
        )
        return int(x == y) if is_known else None
    if isinstance(x, int) and isinstance(y, int):
        steps = {"Add": x + y, "Sub": x - y, "Mul": x * y, "Min": min(x, y), "Max": max(x, y)}
        return steps[kind] if kind in steps else (x // y if y > 0 and x >= 0 else None)
    if kind == "Add" and not (isinstance(x, int) and x < 0 or isinstance(y, int) and y < 0):
        return b.beside(lambda: b.plus(x, y))
    if isinstance(x, Count) and isinstance(y, int):
        if kind == "Mul" and y > 0:
            return b.beside(lambda: b.times(x, y))
        if kind == "Min" and y > 0:
            return b.beside(lambda: b.least(x, y))
        if kind == "Div" and y > 0 and not x.factor % y and not x.most % y:
            return b.beside(lambda: b.over(x, y))
        if kind in ("Mul", "Div", "Max") and y == 1 and kind != "Max":
            return x
    elif isinstance(x, int) and isinstance(y, Count) and kind in ("Mul", "Min"):
        return _arithmetic(b, kind, y, x)
    elif isinstance(x, int) and isinstance(y, Count) and kind == "Sub" and x >= y.most:
        return b.beside(lambda: b.rest(x, y))
    elif x == y and kind in ("Min", "Max"):
        return x
    return None
