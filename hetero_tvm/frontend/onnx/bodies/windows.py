"""Operators of windows that TVM lacks: places of maxima, deformable convolutions, sums of blocks, n-grams."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.bodies.promised import PromisedBody
from hetero_tvm.frontend.onnx.graph.body import as_text
from hetero_tvm.frontend.onnx.graph.products import sparse_product

_MOST_FACTORS = 1 << 22
"""Largest constant matrix, in elements."""


def max_pool(b: PromisedBody) -> bool:
    """MaxPool that also says where its maxima lie."""
    shape, result = b.shape(b.input(0)), b.promised()
    if not b.wants(1) or shape is None or result is None:
        return False
    kernel = list(b.attributes["kernel_shape"])
    rank = len(kernel)
    strides, dilations = (list(b.attributes.get(n, [1] * rank)) for n in ("strides", "dilations"))
    before = list(b.attributes.get("pads", [0] * 2 * rank))[:rank]
    mode = as_text(b.attributes.get("auto_pad", "NOTSET"))
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        for n in range(rank):
            reach = dilations[n] * (kernel[n] - 1) + 1
            total = max(0, (result[2 + n] - 1) * strides[n] + reach - shape[2 + n])
            before[n] = total // 2 if mode == "SAME_UPPER" else total - total // 2
    spatial = [int(n) for n in shape[2:]]
    planes, size = shape[0] * shape[1], math.prod(spatial)
    # Place in the plane of every tap of every window; the element behind the plane for those outside.
    place = np.zeros((math.prod(result[2:]), math.prod(kernel)), np.int64)
    inside = np.ones(place.shape, bool)
    by_column = np.zeros_like(place)
    for n in range(rank):
        out, tap = (np.indices(extents)[n].reshape(-1) for extents in (result[2:], kernel))
        at = out[:, None] * strides[n] - before[n] + tap * dilations[n]
        inside &= (at >= 0) & (at < spatial[n])
        place += at * math.prod(spatial[n + 1 :])
        by_column += at * math.prod(spatial[:n])
    named = by_column if b.attributes.get("storage_order", 0) else place
    dtype = b.dtype(b.input(0))
    lowest = -np.inf if "float" in dtype else np.iinfo(dtype).min
    flat = b.op("Reshape", b.input(0), b.ints([planes, size]))
    flat = b.op("Pad", flat, b.ints([0, 0, 0, 1]), b.const(lowest, dtype))
    taps = b.op("Gather", flat, b.ints(np.where(inside, place, size)), axis=1)
    ordered = taps
    if "float" not in dtype and not inside.all():  # the least number may be in the image as well
        whole = b.op("Cast", taps, to=TensorProto.INT32)
        ordered = b.op("Where", b.const(inside[None], "bool"), whole, b.const(-(2**15), "int32"))
    first = b.op("ArgMax", ordered, axis=2, keepdims=1)
    y = b.op("GatherElements", taps, first, axis=2)
    windows = b.op("Expand", b.ints(named[None]), b.ints([planes, *place.shape]))
    at = b.op("GatherElements", windows, first, axis=2)
    at = b.op("Add", at, b.ints(np.arange(planes)[:, None, None] * size))
    b.end(0, b.op("Reshape", y, b.ints(result)))
    b.end(1, b.op("Reshape", at, b.ints(result)))
    return True


def col2im(b: PromisedBody) -> bool:
    """Col2Im whose sizes come at run time, or of other than two axes: a product with a matrix of 0 and 1."""
    shape, wanted = b.shape(b.input(0)), b.promised()
    if shape is None or wanted is None:
        return False
    block, rank = b.value(2), len(wanted) - 2
    if block is not None and b.value(1) is not None and rank == 2:
        return False  # a transposed convolution
    channels, count = wanted[1], shape[2] or 0
    taps = (shape[1] or 0) // channels
    strides, dilations = (list(b.attributes.get(n, [1] * rank)) for n in ("strides", "dilations"))
    pads = list(b.attributes.get("pads", [0] * 2 * rank))
    image = list(wanted[2:])

    def counts(sizes: Sequence[int]) -> list[int]:
        reach = [dilations[n] * (sizes[n] - 1) + 1 for n in range(rank)]
        return [(image[n] + pads[n] + pads[n + rank] - reach[n]) // strides[n] + 1 for n in range(rank)]

    if block is not None:
        choices = [tuple(int(n) for n in block)]
    else:
        ranges = [range(1, image[n] + pads[n] + pads[n + rank] + 1) for n in range(rank)]
        choices = [c for c in itertools.product(*ranges) if math.prod(c) == taps]
        choices = [c for c in choices if min(counts(c)) > 0 and math.prod(counts(c)) == count]
    factors = math.prod(image) * taps * count
    if not choices or len(choices) > 16 or factors * len(choices) > _MOST_FACTORS:
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} (Col2Im) takes its blocks at run time ({len(choices)} sizes fit), "
            "or is too large for a product.",
            hint="Make image_shape and block_shape constants.",
        )
    dtype = b.dtype(b.input(0))
    rows = b.op("Reshape", b.input(0), b.ints([shape[0] or 1, channels, taps * count]))
    y, kept = "", ""
    for choice in choices:
        matrix = np.zeros((taps * count, math.prod(image)))
        place, inside = np.zeros((taps, count), np.int64), np.ones((taps, count), bool)
        for n in range(rank):
            tap, out = (np.indices(extents)[n].reshape(-1) for extents in (choice, counts(choice)))
            at = tap[:, None] * dilations[n] + out * strides[n] - pads[n]
            inside &= (at >= 0) & (at < image[n])
            place = place * image[n] + at
        matrix[np.flatnonzero(inside.reshape(-1)), place.reshape(-1)[inside.reshape(-1)]] = 1
        ones = b.const(matrix, dtype)
        whole = sparse_product(b, rows, ones, dtype) if b.is_float(b.input(0)) else b.op("MatMul", rows, ones)
        chosen = b.every(b.same(b.input(2), list(choice)))
        y = b.op("Where", b.op("Cast", chosen, to=TensorProto.BOOL), whole, y) if y else whole
        kept = b.op("Max", kept, chosen) if kept else chosen
    if b.value(1) is None:
        kept = b.op("Min", kept, b.every(b.same(b.input(1), image)))
    b.end(0, b.op("Reshape", b.guarded(y, kept), b.ints(wanted)))
    return True


def n_grams(b: PromisedBody) -> bool:
    """TfIdfVectorizer of whole numbers: windows compared with all n-grams."""
    shape = b.shape(b.input(0))
    given = b.attributes
    if shape is None or "pool_int64s" not in given:
        return False
    numbers = [int(n) for n in given["pool_int64s"]]
    starts = [*(int(n) for n in given["ngram_counts"]), len(numbers)]
    shortest, longest, skips = (
        int(given[n]) for n in ("min_gram_length", "max_gram_length", "max_skip_count")
    )
    length, found, column = shape[-1] or 0, [], 0
    x = b.whole(b.input(0))
    rows = [int(n or 0) for n in shape[:-1]]
    for grams in range(1, len(starts)):
        pool = np.array(numbers[starts[grams - 1] : starts[grams]]).reshape(-1, grams)
        column += len(pool)
        if not len(pool):
            continue
        total = b.const(np.zeros([*rows, len(pool)]))
        for skip in range(skips + 1 if grams > 1 else 1) if shortest <= grams <= longest else ():
            reach = (grams - 1) * (skip + 1) + 1
            if reach > length:
                break
            places = np.arange(length - reach + 1)[:, None] + np.arange(grams) * (skip + 1)
            windows = b.op("Gather", x, b.ints(places[:, None, :]), axis=len(rows))
            same = b.op("Cast", b.op("Equal", windows, b.ints(pool)), to=TensorProto.INT32)
            hits = b.op("Cast", b.reduce("ReduceMin", same, [-1], 0, axes_as_input=18), to=TensorProto.FLOAT)
            total = b.op("Add", total, b.reduce("ReduceSum", hits, [len(rows)], 0, axes_as_input=13))
        found.append(total)
    counted = b.op("Concat", *found, axis=-1) if len(found) > 1 else found[0]
    mode = as_text(given["mode"])
    weights = np.array(given.get("weights", np.ones(column)), np.float32)
    if mode in ("IDF", "TFIDF"):
        if mode == "IDF":
            counted = b.op("Min", counted, b.const(1.0))
        counted = b.op("Mul", counted, b.const(weights))
    places = [int(n) for n in given["ngram_indexes"]]
    order = np.zeros((column, max(places) + 1), np.float32)
    order[np.arange(column), places] = 1
    if np.array_equal(order, np.eye(column)):
        b.end(0, counted)
    else:
        b.end(0, b.op("MatMul", counted, b.const(order)))
    return True


def deformable(b: PromisedBody) -> bool:
    """DeformConv: taps looked up between elements, as channels of one image, then a convolution of 1 x 1."""
    x_shape, w_shape, result = b.shape(b.input(0)), b.shape(b.input(1)), b.promised()
    if x_shape is None or w_shape is None or result is None or None in w_shape:
        return False
    if len(x_shape) != 4:
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} (DeformConv) has {len(x_shape) - 2} spatial axes; 2 are supported."
        )
    batch, channels, height, width = (int(n or 0) for n in x_shape)
    outputs, _, kh, kw = (int(n or 0) for n in w_shape)
    group, groups = (int(b.attributes.get(n, 1)) for n in ("group", "offset_group"))
    sh, sw = b.attributes.get("strides", [1, 1])
    dh, dw = b.attributes.get("dilations", [1, 1])
    top, left = list(b.attributes.get("pads", [0] * 4))[:2]
    rows, columns = result[2:]
    taps, dtype = kh * kw, b.dtype(b.input(0))
    offsets = b.op("Reshape", b.input(2), b.ints([batch, groups, taps, 2, rows, columns]))
    tap = np.indices((kh, kw)).reshape(2, taps)
    base_y = tap[0][:, None, None] * dh + np.arange(rows)[:, None] * sh - top + np.zeros((1, 1, columns))
    base_x = tap[1][:, None, None] * dw + np.arange(columns) * sw - left + np.zeros((1, rows, 1))
    y, x = (
        b.op("Add", b.op("Gather", offsets, b.ints(n), axis=3), b.const(base, dtype))
        for n, base in enumerate((base_y, base_x))
    )  # [batch, groups, taps, rows, columns]
    # Infinity is outside like any place that far, and NaN too: they would weigh nothing by NaN.
    y, x = (_within(b, at, -2.0, extent + 1.0, dtype) for at, extent in ((y, height), (x, width)))
    places = [
        b.op("Sub", b.op("Mul", at, b.const(2 / extent, dtype)), b.const(1 - 1 / extent, dtype))
        for at, extent in ((x, width), (y, height))
    ]  # from -1 to 1 between the outer edges of the image, columns first
    places = [b.op("Reshape", at, b.ints([batch * groups, taps * rows, columns, 1])) for at in places]
    image = b.op("Reshape", b.input(0), b.ints([batch * groups, channels // groups, height, width]))
    mode = "linear" if b.opset >= 20 else "bilinear"
    sampled = b.op("GridSample", image, b.op("Concat", *places, axis=3), mode=mode)
    if b.input(4):
        mask = b.op("Reshape", b.input(4), b.ints([batch * groups, 1, taps * rows, columns]))
        sampled = b.op("Mul", sampled, mask)
    sampled = b.op("Reshape", sampled, b.ints([batch, channels * taps, rows, columns]))
    weights = b.op("Reshape", b.input(1), b.ints([outputs, channels // group * taps, 1, 1]))
    bias = [b.input(3)] if b.input(3) else []
    total = b.op("Conv", sampled, weights, *bias, kernel_shape=[1, 1], group=group)
    b.end(0, total)
    return True


def _within(b: PromisedBody, at: str, low: float, high: float, dtype: str) -> str:
    """Places between two bounds; NaN is at the lower one."""
    least = b.const(low, dtype)
    return b.op("Min", b.op("Where", b.op("Greater", at, least), at, least), b.const(high, dtype))
