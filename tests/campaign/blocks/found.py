"""What stands behind networks: boxes, greatest values, places that are found, scatters."""

from __future__ import annotations

import numpy as np

from tests.campaign.blocks.block import BOOL, F32, I64, Block, below, kind


@kind
def boxes(b: Block) -> None:
    """Boxes of grids and anchors, decoded, thresholded, suppressed, gathered."""
    b.size("b", 1, 2)
    b.size("n", b.pick(1, 4), 31, 0.3)
    classes = b.pick(1, 2, 5)
    form = b.pick("yolo", "ssd", "corners")
    x = b.feed("x", F32, ("b", "n", 4 + classes))
    out = b.node("Split", x, b.ints(2, 2, classes), axis=-1, results=3)
    middle, extent, score = b.node("Sigmoid", out), f"{out}_1", b.node("Sigmoid", f"{out}_2")
    if form == "yolo":
        middle = b.node("Mul", b.node("Sub", middle, b.scalar(0.25)), b.scalar(8.0))
        extent = b.node("Pow", b.node("Mul", b.node("Sigmoid", extent), b.scalar(2.0)), b.scalar(2.0))
    else:
        extent = b.node("Exp", extent)
    if form == "corners":
        box = b.node("Concat", middle, b.node("Add", middle, extent), axis=-1)
    else:
        half = b.node("Div", extent, b.scalar(2.0))
        box = b.node("Concat", b.node("Sub", middle, half), b.node("Add", middle, half), axis=-1)
    scores = b.node("Transpose", score, perm=[0, 2, 1])
    overlap = b.constant(np.array([b.pick(0.1, 0.45, 0.9)], np.float32))
    args = [box, scores, b.ints(b.pick(2, 7, 100)), overlap]
    if b.chance(0.8):
        args.append(b.constant(np.array([b.pick(0.0, 0.5, 0.6)], np.float32)))
    kept = b.node("NonMaxSuppression", *args, center_point_box=0)
    end = b.pick("kept", "gathered", "columns")
    if end == "kept":
        b.result(kept, I64)
        return
    image = b.node("Slice", kept, b.ints(0), b.ints(1), b.ints(1))
    label = b.node("Slice", kept, b.ints(1), b.ints(2), b.ints(1))
    place = b.node("Slice", kept, b.ints(2), b.ints(3), b.ints(1))
    if end == "gathered":
        at = b.node("Concat", image, place, axis=1)
        b.result(b.node("GatherND", box, at))
        b.result(b.node("GatherND", scores, kept))
        b.result(b.node("Cast", label, to=F32))
    else:
        flat = b.node("Squeeze", place, b.ints(1))
        first = b.node("Gather", box, b.constant(np.int64(0)), axis=0)
        b.result(b.node("Gather", first, flat, axis=0))
        b.result(b.node("Add", label, b.constant(np.int64(1))), I64)


@kind
def greatest(b: Block) -> None:
    """TopK, ArgMax and gathers by what they give."""
    b.size("b", 1, 3)
    k = b.pick(1, 3, 5)
    b.size("n", k, 40, 0.3)
    x = b.feed("x", F32, ("b", "n", 4))
    ties = b.chance(0.4)
    score = b.node("ReduceMax", b.node("Round", x) if ties else x, axes=[-1], keepdims=0)
    out = b.node("TopK", score, b.ints(k), axis=-1, results=2, largest=b.pick(0, 1, 1), sorted=1)
    b.result(out)
    places = f"{out}_1"
    form = b.pick("elements", "nd", "onehot", "flat", "mask", "label")
    if form == "elements":
        wide = b.node("Unsqueeze", places, b.ints(2))
        wide = b.node("Expand", wide, b.node("Concat", b.extent(x, 0), b.ints(k, 4), axis=0))
        b.result(b.node("GatherElements", x, wide, axis=1))
    elif form == "nd":
        b.result(b.node("GatherND", x, b.node("Unsqueeze", places, b.ints(2)), batch_dims=1))
    elif form == "onehot":
        depth = b.extent(x, 1)
        one = b.node("OneHot", places, depth, b.constant(np.array([0, 1], np.float32)), axis=-1)
        b.result(b.node("MatMul", one, x))
    elif form == "flat":
        rows = b.node("Squeeze", b.extent(x, 0), b.ints(0))
        batch = b.node("Range", b.constant(np.int64(0)), rows, b.constant(np.int64(1)))
        begin = b.node("Mul", batch, b.extent(x, 1))
        at = b.node("Add", places, b.node("Unsqueeze", begin, b.ints(1)))
        b.result(b.node("Gather", b.reshape(x, -1, 4), at, axis=0))
    elif form == "mask":
        zero = b.node("Mul", score, b.scalar(0.0))
        updates = b.node("Mul", b.node("Cast", places, to=F32), b.scalar(0.5))
        way = b.pick("none", "add", "max") if b.opset >= 18 else "none"
        extra = {} if way == "none" else {"reduction": way}
        b.result(b.node("ScatterElements", zero, places, updates, axis=1, **extra))
    else:
        label = b.node("ArgMax", x, axis=-1, keepdims=0, select_last_index=b.pick(0, 1))
        b.result(b.node("GatherElements", label, places, axis=1), I64)


@kind
def places(b: Block) -> None:
    """NonZero, Compress, Where of found places, and what is done with so many rows."""
    b.size("b", 1, 3)
    b.size("n", 1, 23, 0.3)
    x = b.feed("x", F32, ("b", "n", 3))
    score = b.node("ReduceSum", x, b.ints(-1), keepdims=0)
    keep = b.node("Greater", score, b.scalar(b.pick(-9.0, 0.0, 0.5, 9.0)))
    form = b.pick("nonzero", "compress", "nd", "write", "count", "sum", "sort")
    if form == "compress":
        flat = b.reshape(x, -1, 3)
        rows = b.node("Compress", flat, b.reshape(keep, -1), axis=0)
        b.result(b.node("MatMul", rows, b.weight(3, 5)))
        return
    found = b.node("NonZero", keep)
    at = b.node("Transpose", found, perm=[1, 0])
    if form == "nonzero":
        b.result(found, I64)
    elif form == "nd":
        rows = b.node("GatherND", x, at)
        y = b.node("Softmax", b.node("MatMul", rows, b.weight(3, 4)), axis=-1)
        b.result(y)
        b.result(b.node("ReduceSum", y, b.ints(0), keepdims=0))
    elif form == "write":
        rows = b.node("Mul", b.node("GatherND", x, at), b.scalar(2.0))
        b.result(b.node("ScatterND", x, at, rows))
    elif form == "count":
        number = b.node("Slice", b.node("Shape", found), b.ints(1), b.ints(2))
        b.result(b.node("Div", b.node("Cast", number, to=F32), b.scalar(2.0)))
    elif form == "sum":
        rows = b.node("GatherND", x, at)
        b.result(b.node("ReduceMax", b.node("Concat", rows, b.weight(1, 3), axis=0), axes=[0]))
    else:
        rows = b.node("GatherND", score, at)
        number = b.node("Shape", rows)
        out = b.node("TopK", rows, number, axis=0, results=2)
        b.result(out)
        b.result(b.node("Gather", at, f"{out}_1", axis=0), I64)


@kind
def scatters(b: Block) -> None:
    """Scatters of segments, histograms and caches; indices negative and repeated."""
    b.opset = b.pick(16, 18, 20)
    b.size("n", 1, 17)
    b.size("e", 1, 29)
    x = b.feed("x", F32, ("n", 5))
    form = b.pick("edges", "degrees", "nd", "elements", "cache", "gather")

    def edge(rng, shape, sizes):
        return rng.integers(-sizes["n"], sizes["n"], shape)

    at = b.feed("at", I64, ("e",), edge)
    zero = b.node("Mul", x, b.scalar(0.0))
    if form == "edges":
        to = b.feed("to", I64, ("e",), below("n"))
        message = b.node("Relu", b.node("MatMul", b.node("Gather", x, at, axis=0), b.weight(5, 5)))
        wide = b.node("Expand", b.node("Unsqueeze", to, b.ints(1)), b.node("Shape", message))
        way = b.pick("add", "mul", "max", "min") if b.opset >= 18 else b.pick("add", "mul")
        b.result(b.node("ScatterElements", zero, wide, message, axis=0, reduction=way))
    elif form == "degrees":
        ones = b.node("Expand", b.scalar(1.0), b.node("Shape", at))
        none = b.node("Expand", b.scalar(0.0), b.extent(x, 0))
        way = dict(axis=0, reduction="add")
        degree = b.node("ScatterElements", none, at, ones, **way)
        norm = b.node("Pow", b.node("Max", degree, b.scalar(1.0)), b.scalar(-0.5))
        b.result(b.node("Mul", x, b.node("Unsqueeze", norm, b.ints(1))))
    elif form == "nd":
        rows = b.feed("rows", F32, ("e", 5))
        way = b.pick("add", "mul") if b.opset < 18 else b.pick("add", "mul", "max", "min")
        b.result(b.node("ScatterND", x, b.node("Unsqueeze", at, b.ints(1)), rows, reduction=way))
    elif form == "elements":
        rows = b.feed("rows", F32, ("e", 2))
        two = b.feed("two", I64, ("e", 2), edge)
        b.result(b.node("ScatterElements", x, two, rows, axis=0, reduction="add"))
    elif form == "cache":
        row = b.feed("row", F32, (1, 5))
        place = b.feed("place", I64, (1,), below("n"))
        y = b.node("ScatterND", x, b.node("Unsqueeze", place, b.ints(1)), row)
        b.result(b.node("MatMul", y, b.weight(5, 4)))
    else:
        rows = b.node("Gather", x, at, axis=0)
        keep = b.node("Less", at, b.constant(np.int64(0)))
        b.result(b.node("Where", b.node("Unsqueeze", keep, b.ints(1)), b.node("Neg", rows), rows))
        b.result(b.node("Not", keep), BOOL)
    if form != "gather":
        b.result(b.node("Gather", x, at, axis=0))


@kind
def regions(b: Block) -> None:
    """Boxes of an image of any size, narrower than a vector too, pooled to a grid and joined."""
    b.size("h", 1, 40, 0.2)
    b.size("w", 1, 40, 0.2)
    x = b.feed("x", F32, (2, 3, "h", "w"))

    def corners(rng, shape, sizes):
        ends = np.sort(rng.uniform(0, 1, (shape[0], 2, 2)), axis=1) * [sizes["w"], sizes["h"]]
        return ends.reshape(shape)

    boxes = b.feed("boxes", F32, (4, 4), corners)
    images = b.feed("images", I64, (4,), below(2))
    ways = dict(output_height=b.pick(1, 3), output_width=b.pick(2, 7), sampling_ratio=b.pick(0, 2))
    y = b.node("RoiAlign", x, boxes, images, spatial_scale=b.pick(1.0, 0.5), **ways)
    b.result(b.node("Relu", y))
