"""Steps that add operators with indices, sorting and scanning."""

from __future__ import annotations

import numpy as np

from tests.campaign.graphs.builder import Builder
from tests.campaign.graphs.registry import operator
from tests.campaign.graphs.shaping import ANY, ints, with_axes
from tests.campaign.graphs.values import FLOATS, NUMBERS, SIGNED, Rejected, Value, onnx_type


def indices(b: Builder, shape, extent: int) -> Value:
    """Indices into an axis, constants or given at run time."""
    if not extent:
        raise Rejected("nothing there")
    dtype = b.one(["int64", "int64", "int32"])
    low = -extent if b.opset >= 11 and b.chance(0.5) else 0
    return b.fresh(dtype, shape, low, extent - 1, p_const=0.5)


@operator(5)
def gather(b: Builder) -> None:
    x = b.pick(ANY, low=1)
    axis = b.axis(x)
    b.op(
        "Gather", [x, indices(b, b.shape(0, 2), x.shape[axis])], axis=axis if axis or b.chance(0.5) else None
    )


@operator(2)
def gather_elements(b: Builder) -> None:
    x = b.pick(ANY, low=1, high=4)
    axis = b.axis(x)
    shape = [d if n == axis % x.rank else max(1, d - b.number(0, 1)) for n, d in enumerate(x.shape)]
    shape[axis] = b.number(1, 5)
    b.op("GatherElements", [x, indices(b, shape, x.shape[axis])], axis=axis)


@operator(2)
def gather_nd(b: Builder) -> None:
    x = b.pick(ANY, low=1, high=4)
    batch = b.number(0, x.rank - 1) if b.opset >= 12 and b.chance(0.4) else 0
    depth = b.number(1, x.rank - batch)
    extents = x.shape[batch : batch + depth]
    if 0 in x.shape:
        raise Rejected("nothing there")
    shape = (*x.shape[:batch], *b.shape(0, 2), depth)
    low = min(extents)
    at = b.fresh("int64", shape, -low if b.chance(0.4) else 0, low - 1, p_const=0.5)
    b.op("GatherND", [x, at], batch_dims=batch or None)


@operator(2)
def scatter(b: Builder) -> None:
    x = b.pick(ANY, low=1, high=4)
    reduction = None
    if b.opset >= 16 and x.dtype != "bool" and b.chance(0.5):
        reduction = b.one(["add", "mul"] + (["max", "min"] if b.opset >= 18 else []))
    if 0 in x.shape:
        raise Rejected("nothing there")
    if b.chance(0.5):
        axis = b.axis(x)
        shape = [max(1, d - b.number(0, 2)) for d in x.shape]
        if reduction:
            at = indices(b, shape, x.shape[axis])
        else:
            at = _distinct(b, shape, axis, x.shape[axis])
        updates = b.fresh(x.dtype, shape)
        op = "ScatterElements" if b.opset >= 11 else "Scatter"
        b.op(op, [x, at, updates], axis=axis if b.opset >= 11 else axis % x.rank, reduction=reduction)
        return
    depth = b.number(1, x.rank)
    extents = x.shape[:depth]
    count = b.number(1, min(4, int(np.prod(extents))))
    flat = b.rng.permutation(int(np.prod(extents)))[:count]
    places = np.stack(np.unravel_index(flat, extents), -1).astype(np.int64)
    if b.chance(0.3):
        places = np.where(b.rng.random(places.shape) < 0.4, places - np.array(extents), places)
    if reduction and b.chance(0.5):
        at = b.fresh("int64", (count, depth), 0, min(extents) - 1, p_const=0.3)
    else:
        at = b.const(places)
    b.op("ScatterND", [x, at, b.fresh(x.dtype, (count, *x.shape[depth:]))], reduction=reduction)


def _distinct(b: Builder, shape, axis: int, extent: int) -> Value:
    """Constant indices that name no place twice."""
    shape[axis] = min(shape[axis], extent)
    order = np.argsort(
        b.rng.random([d if n != axis % len(shape) else extent for n, d in enumerate(shape)]), axis
    )
    at = np.take(order, range(shape[axis]), axis).astype(b.one(["int64", "int32"]))
    if b.opset >= 11 and b.chance(0.3):
        at = np.where(b.rng.random(at.shape) < 0.3, at - extent, at).astype(at.dtype)
    return b.const(at)


def _distinct_values(b: Builder, x: Value, axis: int) -> None:
    """Refuse floats that are so near to each other that rounding orders them, or that may be NaN."""
    if b.special and x.is_float:
        raise Rejected("NaN has no place in an order")
    wide = np.sort(np.asarray(x.sample, np.float64), axis)
    with np.errstate(all="ignore"):
        gaps = np.diff(wide, axis=axis)
    if x.is_float and gaps.size and np.nanmin(np.where(gaps == 0, 1, gaps), initial=1) < 1e-4:
        raise Rejected("near a step")


@operator(3)
def arg_extremum(b: Builder) -> None:
    x = b.pick(NUMBERS, low=1)
    axis = b.axis(x, negative=b.opset >= 11)
    _distinct_values(b, x, axis)
    last = {"select_last_index": b.number(0, 1)} if b.opset >= 12 and b.chance(0.4) else {}
    b.op(
        b.one(["ArgMax", "ArgMin"]),
        [x],
        axis=axis if b.chance(0.8) or axis else None,
        keepdims=b.one([None, 0, 1]),
        **last,
    )


@operator(2)
def top_k(b: Builder) -> None:
    x = b.pick(FLOATS if b.opset < 11 else (*FLOATS, "int64", "int32"), low=1)
    axis = b.axis(x, negative=b.opset >= 11)
    if not x.shape[axis]:
        raise Rejected("nothing there")
    _distinct_values(b, x, axis)
    k = b.number(1, x.shape[axis])
    results = [True, True]
    if b.opset < 10:
        b.node("TopK", [x], results, axis=axis, k=k)
        return
    extra = {"largest": b.one([None, 0, 1])} if b.opset >= 11 else {}
    b.node(
        "TopK",
        [x, ints(b, [k])],
        results,
        axis=axis if b.chance(0.8) or axis not in (-1, x.rank - 1) else None,
        **extra,
    )


@operator(2)
def scan(b: Builder) -> None:
    x = b.pick((*FLOATS, "int64", "int32"), low=1)
    axis = b.const(b.axis(x), b.one(["int64", "int32"]))
    b.op("CumSum", [x, axis], exclusive=b.one([None, 0, 1]), reverse=b.one([None, 0, 1]))


@operator(0.6)
def of_unknown_size(b: Builder) -> None:
    """Shapes that depend on values: to be refused with a reason, unless the values are constants."""
    kind = b.one(["NonZero", "Compress", "Unique"])
    if kind == "Compress":
        x = b.pick(FLOATS, low=1)
        axis = b.axis(x, negative=b.opset >= 11)
        flags = b.rng.random(x.shape[axis]) < 0.6
        condition = b.const(flags) if b.chance(0.9) else b.source("bool", flags.shape)
        b.op(kind, [x, condition], axis=axis)
    else:
        x = b.weight("float32", b.shape(1, 2)) if b.chance(0.8) else b.pick(("float32",), 1, 2)
        b.op(kind, [x])


REDUCTIONS = (
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
    "ReduceSumSquare"
).split()


@operator(9)
def reduction(b: Builder) -> None:
    op = b.one(REDUCTIONS + ["ReduceSum", "ReduceMean", "ReduceMax"])
    if b.special and op in ("ReduceMax", "ReduceMin"):
        raise Rejected("the references drop NaN or keep it, depending on where it stands")
    x = b.pick(FLOATS if b.chance(0.85) else (*SIGNED, "uint8", "bool"))
    if x.dtype not in FLOATS and op in ("ReduceLogSum", "ReduceLogSumExp", "ReduceL2", "ReduceMean"):
        raise Rejected("of integers rounding is open")
    if op == "ReduceLogSum":
        x = b.positive(x)
    if op == "ReduceProd" and x.is_float:
        x = b.op("Add", [b.op("Mul", [b.bounded(x), b.const(0.2, x.dtype)]), b.const(1.0, x.dtype)])
    axes = [int(a) for a in b.rng.permutation(x.rank)[: b.number(1, max(1, x.rank))]] if x.rank else None
    if axes:
        axes = sorted(axes) if b.chance(0.8) else axes
        if b.opset >= 11:
            axes = [a - x.rank if b.chance(0.4) else a for a in axes]
    keep = b.one([None, 0, 1])
    since = 13 if op == "ReduceSum" else 18
    if b.opset >= since and b.chance(0.15):
        noop = b.one([None, 0, 1])
        inputs = [x, b.const(np.zeros(0, np.int64))] if b.chance(0.4) else [x]
        b.op(op, inputs, keepdims=keep, noop_with_empty_axes=noop)
        return
    with_axes(b, op, x, axes if b.chance(0.85) else None, since, keepdims=keep)


@operator(1)
def eye_of_types(b: Builder) -> None:
    """A chain of casts, of which each rounds or wraps."""
    x = b.source("int32", b.shape(0, 3), -300, 300)
    for dtype in (b.one(["int8", "uint8", "int16"]), b.one(["float32", "int64", "float16"])):
        x = b.op("Cast", [x], to=onnx_type(dtype))
