"""Attention as exporters and people spell it."""

from __future__ import annotations

import numpy as np

from tests.campaign.blocks.block import BOOL, F32, I64, Block, below, kind


def _heads(b: Block, x: str, heads: int, depth: int) -> str:
    """(batch, rows, heads · depth) to (batch, heads, rows, depth)."""
    form = b.pick("zero", "minus", "shape")
    if form == "zero":
        y = b.reshape(x, 0, 0, heads, depth)
    elif form == "minus":
        y = b.reshape(x, 0, -1, heads, depth)
    else:
        y = b.reshape(x, b.extent(x, 0), b.extent(x, 1), heads, depth)
    return b.node("Transpose", y, perm=[0, 2, 1, 3])


def _norm(b: Block, x: str, depth: int) -> str:
    form = b.pick("rms", "layer", "l2", "rms_pow")
    if form == "layer":
        return b.node("LayerNormalization", x, b.weight(depth), b.weight(depth), axis=-1)
    if form == "l2":
        return b.node("LpNormalization", x, axis=-1, p=2)
    square = b.node("Pow", x, b.scalar(2.0)) if form == "rms_pow" else b.node("Mul", x, x)
    mean = b.node("ReduceMean", square, axes=[-1])
    root = b.node("Sqrt", b.node("Add", mean, b.scalar(1e-6)))
    return b.node("Mul", b.node("Div", x, root), b.weight(depth))


def _half(b: Block, x: str, begin: int, end: int) -> str:
    return b.node("Slice", x, b.ints(begin), b.ints(end), b.ints(-1))


def _rotate(b: Block, x: str, cos: str, sin: str, depth: int, form: str) -> str:
    """Rotary embedding of the first ``depth`` of each head."""
    if form == "halves":
        turned = b.node(
            "Concat", b.node("Neg", _half(b, x, depth // 2, 1 << 62)), _half(b, x, 0, depth // 2), axis=-1
        )
        return b.node("Add", b.node("Mul", x, cos), b.node("Mul", turned, sin))
    even = b.node("Slice", x, b.ints(0), b.ints(1 << 62), b.ints(-1), b.ints(2))
    odd = b.node("Slice", x, b.ints(1), b.ints(1 << 62), b.ints(-1), b.ints(2))
    cos, sin = (_half(b, t, 0, depth // 2) for t in (cos, sin))
    first = b.node("Sub", b.node("Mul", even, cos), b.node("Mul", odd, sin))
    second = b.node("Add", b.node("Mul", odd, cos), b.node("Mul", even, sin))
    pair = [b.node("Unsqueeze", t, b.ints(4)) for t in (first, second)]
    joined = b.node("Concat", *pair, axis=4)
    shape = b.node("Shape", x)
    return b.node("Reshape", joined, shape)


def _rope(b: Block, parts: list[str], rows: str, depth: int) -> list[str]:
    if depth % 4:
        return parts
    position = b.feed("position", I64, ("b", rows), below(40))
    frequencies = b.constant((1.0 / 100 ** (np.arange(0, depth, 2) / depth)).astype(np.float32))
    at = b.node("Unsqueeze", b.node("Cast", position, to=F32), b.ints(2))
    angle = b.node("Mul", at, frequencies)
    angle = b.node("Concat", angle, angle, axis=-1)
    cos, sin = (b.node("Unsqueeze", b.node(op, angle), b.ints(1)) for op in ("Cos", "Sin"))
    form = b.pick("halves", "interleaved")
    return [_rotate(b, part, cos, sin, depth, form) for part in parts]


def _repeat(b: Block, x: str, groups: int, times: int, depth: int) -> str:
    """Heads of keys or values, each ``times`` times."""
    form = b.pick("expand", "gather", "tile")
    if form == "gather":
        return b.node("Gather", x, b.constant(np.repeat(np.arange(groups), times)), axis=1)
    wide = b.node("Unsqueeze", x, b.ints(2))
    if form == "tile":
        wide = b.node("Tile", wide, b.ints(1, 1, times, 1, 1))
    else:
        target = b.node(
            "Concat",
            b.extent(x, 0),
            b.ints(groups),
            b.ints(times),
            b.extent(x, 2),
            b.ints(depth),
            axis=0,
        )
        wide = b.node("Expand", wide, target)
    return b.reshape(wide, b.extent(x, 0), groups * times, -1, depth)


def _count(b: Block, tensor: str, axis: int) -> str:
    """0, 1, ... along an axis of a tensor."""
    extent = b.node("Squeeze", b.extent(tensor, axis), b.ints(0))
    return b.node("Range", b.constant(np.int64(0)), extent, b.constant(np.int64(1)))


def _distance(b: Block, scores: str) -> str:
    rows = b.node("Unsqueeze", _count(b, scores, 2), b.ints(1))
    keys = b.node("Unsqueeze", _count(b, scores, 3), b.ints(0))
    return b.node("Sub", keys, rows)


def _bias(b: Block, scores: str, heads: int, queries: str, depth: int) -> str:
    form = b.pick("none", "none", "alibi", "t5", "given", "deberta", "cap")
    if form == "none":
        return scores
    if form == "cap":
        cap = b.scalar(5.0)
        return b.node("Mul", b.node("Tanh", b.node("Div", scores, cap)), cap)
    if form == "given":
        return b.node("Add", scores, b.feed("bias", F32, (b.pick(1, "b"), b.pick(1, heads), "s", "t")))
    away = _distance(b, scores)
    if form == "alibi":
        slopes = b.constant((0.5 ** np.arange(1, heads + 1)).astype(np.float32).reshape(1, heads, 1, 1))
        away = b.node("Cast", away, to=F32)
        if b.chance():
            away = b.node("Neg", b.node("Abs", away))
        return b.node("Add", scores, b.node("Mul", away, slopes))
    if form == "t5":
        far = b.node("Abs", away)
        small = b.node("Less", far, b.constant(np.int64(4)))
        log = b.node("Log", b.node("Div", b.node("Cast", far, to=F32), b.scalar(4.0)))
        large = b.node("Cast", b.node("Mul", log, b.scalar(2.3)), to=I64)
        large = b.node("Min", b.node("Add", large, b.constant(np.int64(4))), b.constant(np.int64(7)))
        bucket = b.node("Where", small, far, large)
        late = b.node("Cast", b.node("Greater", away, b.constant(np.int64(0))), to=I64)
        bucket = b.node("Add", bucket, b.node("Mul", late, b.constant(np.int64(8))))
        table = b.node("Gather", b.weight(16, heads), bucket)
        bias = b.node("Unsqueeze", b.node("Transpose", table, perm=[2, 0, 1]), b.ints(0))
        return b.node("Add", scores, bias)
    # DeBERTa's: scores of queries with 2k positions, gathered by clipped distance.
    span = 5
    embedded = b.weight(1, heads, depth, 2 * span)
    c2p = b.node("MatMul", queries, embedded)
    place = b.node("Add", away, b.constant(np.int64(span)))
    place = b.node("Clip", place, b.constant(np.int64(0)), b.constant(np.int64(2 * span - 1)))
    target = b.node("Shape", scores)
    place = b.node("Expand", place, target)
    return b.node("Add", scores, b.node("GatherElements", c2p, place, axis=3))


def _mask(b: Block, scores: str, square: bool) -> str:
    form = b.pick("none", "inf", "1e4", "bool", "least", "causal", "trilu", "padding", "both")
    if form == "none":
        return scores
    if form == "inf":

        def hidden(rng, shape, sizes):
            mask = np.where(rng.random(shape) < 0.3, -np.inf, 0.0)
            mask[..., 0] = 0
            return mask

        return b.node("Add", scores, b.feed("mask", F32, ("b", 1, "s", "t"), hidden))
    if form in ("1e4", "padding"):
        keep = b.feed("keep", I64, ("b", "t"), below(2))
        keep = b.node("Unsqueeze", keep, b.ints(1, 2))
        keep = b.node("Cast", keep, to=F32)
        away = b.node("Mul", b.node("Sub", b.scalar(1.0), keep), b.scalar(-1e4 if form == "1e4" else -3.4e38))
        return b.node("Add", scores, away)
    if form == "bool":
        keep = b.feed("keep", BOOL, ("b", 1, "s", "t"))
        return b.node("Where", keep, scores, b.scalar(-1e9))
    if form == "least":
        keep = b.feed("keep", BOOL, ("b", "t"))
        keep = b.node("Unsqueeze", keep, b.ints(1, 2))
        return b.node("Where", b.node("Not", keep), b.scalar(np.finfo(np.float32).min), scores)
    if form == "trilu" and square:
        ones = b.node("Expand", b.scalar(1.0), b.node("Shape", scores))
        low = b.node("Trilu", ones, upper=0)
        hole = b.node("Equal", low, b.scalar(0.0))
        return b.node("Where", hole, b.scalar(-np.inf), scores)
    late = b.node("Greater", _distance(b, scores), b.constant(np.int64(0)))
    scores = b.node("Where", late, b.scalar(b.pick(-np.inf, -1e4, -3.4028235e38)), scores)
    if form == "both":
        keep = b.feed("keep", BOOL, ("b", 1, 1, "t"))
        scores = b.node("Where", keep, scores, b.scalar(-1e9))
    return scores


def _softmax(b: Block, scores: str, heads: int) -> str:
    form = b.pick("plain", "plain", "guarded", "sink", "by hand", "log")
    if form == "sink":
        sink = b.node(
            "Expand",
            b.weight(1, heads, 1, 1),
            b.node("Concat", b.extent(scores, 0), b.ints(heads), b.extent(scores, 2), b.ints(1), axis=0),
        )
        weights = b.node("Softmax", b.node("Concat", scores, sink, axis=-1), axis=-1)
        return b.node("Slice", weights, b.ints(0), b.ints(-1), b.ints(-1))
    if form == "by hand":
        less = b.node("Sub", scores, b.node("ReduceMax", scores, axes=[-1]))
        up = b.node("Exp", less)
        return b.node("Div", up, b.node("ReduceSum", up, b.ints(-1)))
    if form == "log":
        return b.node("Exp", b.node("LogSoftmax", scores, axis=-1))
    weights = b.node("Softmax", scores, axis=b.pick(-1, 3))
    if form == "guarded":
        weights = b.node("Where", b.node("IsNaN", weights), b.scalar(0.0), weights)
    return weights


@kind
def attention(b: Block) -> None:
    """Self and cross attention: projections, norms, rotation, groups, biases, masks, sinks."""
    groups, times = b.pick(1, 2, 3), b.pick(1, 1, 2, 3)
    heads, depth, width = groups * times, b.pick(4, 6, 8, 16, 20), b.pick(7, 16, 24)
    value_depth = depth if b.chance(0.8) else b.pick(3, 12)
    b.size("b", 1, 3)
    b.size("s", 1, 19)
    cross = b.chance(0.4)
    keys = "t" if cross else "s"
    if cross:
        b.size("t", 1, 23)
    else:
        b.ranges["t"] = b.ranges["s"]
    x = b.feed("x", F32, ("b", "s", width))
    y = b.feed("memory", F32, ("b", keys, width)) if cross else x
    if not cross and times == 1 and value_depth == depth and b.chance(0.4):
        packed = b.node("MatMul", x, b.weight(width, 3 * heads * depth))
        packed = b.node("Add", packed, b.weight(3 * heads * depth))
        if b.chance():
            parts = b.reshape(packed, 0, 0, 3, heads, depth)
            parts = b.node("Transpose", parts, perm=[2, 0, 3, 1, 4])
            q, k, v = (b.node("Gather", parts, b.constant(np.int64(n)), axis=0) for n in range(3))
        else:
            out = b.node("Split", packed, b.ints(*[heads * depth] * 3), axis=-1, results=3)
            q, k, v = (_heads(b, name, heads, depth) for name in (out, f"{out}_1", f"{out}_2"))
    else:
        project = b.pick("bias", "plain", "none after")
        q, k, v = (
            b.node("MatMul", source, b.weight(width, count * d))
            for source, count, d in ((x, heads, depth), (y, groups, depth), (y, groups, value_depth))
        )
        if project == "bias":
            q = b.node("Add", b.weight(heads * depth), q)
            v = b.node("Add", v, b.weight(groups * value_depth))
        q = _heads(b, q, heads, depth)
        k, v = _heads(b, k, groups, depth), _heads(b, v, groups, value_depth)
    if b.chance(0.3):
        q, k = _norm(b, q, depth), _norm(b, k, depth)
    if not cross and b.chance(0.4):
        q, k = _rope(b, [q, k], "s", depth)
    if times > 1:
        k, v = _repeat(b, k, groups, times, depth), _repeat(b, v, groups, times, value_depth)
    if b.chance(0.15):
        b.result(k)
    scale = b.pick("q", "both", "scores", "none")
    if scale == "q":
        q = b.node("Mul", q, b.scalar(depth**-0.5))
    k = b.node("Transpose", k, perm=[0, 1, 3, 2])
    if scale == "both":
        q, k = (b.node("Mul", t, b.scalar(depth**-0.25)) for t in (q, k))
    scores = b.node("MatMul", q, k)
    if scale == "scores":
        scores = b.node("Div", scores, b.scalar(depth**0.5))
    scores = _bias(b, scores, heads, q, depth)
    scores = _mask(b, scores, not cross)
    weights = _softmax(b, scores, heads)
    if b.chance(0.15):
        b.result(weights)
    out = b.node("MatMul", weights, v)
    out = b.node("Transpose", out, perm=[0, 2, 1, 3])
    out = b.reshape(out, b.extent(x, 0), -1, heads * value_depth)
    if b.chance(0.7):
        out = b.node("MatMul", out, b.weight(heads * value_depth, width))
        if b.chance():
            out = b.node("Add", out, x)
    b.result(out)
    _fix_keys(b, cross)


def _fix_keys(b: Block, cross: bool) -> None:
    """Keys are rows where the attention looks at itself."""
    if not cross:
        b.rename("t", "s")


@kind
def windows(b: Block) -> None:
    """Windows of an image (Swin): partition, shift, bias of relative places, mask, and back."""
    window, heads, depth = b.pick(2, 3, 4), b.pick(1, 2, 3), b.pick(4, 8)
    width = heads * depth
    b.size("b", 1, 3)
    h, w = (int(b.rng.integers(1, 4)) * window for _ in range(2))
    x = b.feed("x", F32, ("b", h, w, width))
    shift = int(b.rng.integers(0, window))
    y = x
    if shift:
        for axis in (1, 2):
            first = b.node("Slice", y, b.ints(shift), b.ints(1 << 62), b.ints(axis))
            last = b.node("Slice", y, b.ints(0), b.ints(shift), b.ints(axis))
            y = b.node("Concat", first, last, axis=axis)
    y = b.reshape(y, -1, h // window, window, w // window, window, width)
    y = b.node("Transpose", y, perm=[0, 1, 3, 2, 4, 5])
    area = window * window
    y = b.reshape(y, -1, area, width)
    packed = b.node("Add", b.node("MatMul", y, b.weight(width, 3 * width)), b.weight(3 * width))
    packed = b.node("Transpose", b.reshape(packed, -1, area, 3, heads, depth), perm=[2, 0, 3, 1, 4])
    q, k, v = (b.node("Gather", packed, b.constant(np.int64(n)), axis=0) for n in range(3))
    q = b.node("Mul", q, b.scalar(depth**-0.5))
    scores = b.node("MatMul", q, b.node("Transpose", k, perm=[0, 1, 3, 2]))
    places = b.rng.integers(0, (2 * window - 1) ** 2, area * area)
    bias = b.node("Gather", b.weight((2 * window - 1) ** 2, heads), b.constant(places))
    bias = b.node("Transpose", b.reshape(bias, area, area, heads), perm=[2, 0, 1])
    scores = b.node("Add", scores, b.node("Unsqueeze", bias, b.ints(0)))
    if shift:
        count = h * w // area
        mask = np.where(b.rng.random((count, area, area)) < 0.3, -100, 0).astype(np.float32)
        five = b.reshape(scores, -1, count, heads, area, area)
        five = b.node("Add", five, b.constant(mask[None, :, None]))
        scores = b.reshape(five, -1, heads, area, area)
    out = b.node("MatMul", b.node("Softmax", scores, axis=-1), v)
    out = b.reshape(b.node("Transpose", out, perm=[0, 2, 1, 3]), -1, area, width)
    out = b.node("Add", b.node("MatMul", out, b.weight(width, width)), b.weight(width))
    out = b.reshape(out, -1, h // window, w // window, window, window, width)
    out = b.reshape(b.node("Transpose", out, perm=[0, 1, 3, 2, 4, 5]), -1, h, w, width)
    if shift:
        for axis in (1, 2):
            first = b.node("Slice", out, b.ints(-shift), b.ints(1 << 62), b.ints(axis))
            last = b.node("Slice", out, b.ints(0), b.ints(-shift), b.ints(axis))
            out = b.node("Concat", first, last, axis=axis)
    b.result(b.node("Add", x, out) if b.chance() else out)


@kind
def linear_attention(b: Block) -> None:
    """Attention without softmax over keys: features, sums over rows, channels with channels."""
    heads, depth, width = b.pick(1, 2, 3), b.pick(4, 8, 12), b.pick(8, 13)
    b.size("b", 1, 3)
    b.size("s", 1, 21)
    x = b.feed("x", F32, ("b", "s", width))
    q, k, v = (_heads(b, b.node("MatMul", x, b.weight(width, heads * depth)), heads, depth) for _ in range(3))
    form = b.pick("elu", "channels", "norm", "focus")
    if form == "channels":  # XCA: softmax over channels, of rows with norm 1
        q, k = (b.node("LpNormalization", b.node("Transpose", t, perm=[0, 1, 3, 2]), axis=-1) for t in (q, k))
        scores = b.node("MatMul", q, b.node("Transpose", k, perm=[0, 1, 3, 2]))
        weights = b.node("Softmax", b.node("Mul", scores, b.weight(1, heads, 1, 1)), axis=-1)
        out = b.node("MatMul", weights, b.node("Transpose", v, perm=[0, 1, 3, 2]))
        out = b.node("Transpose", out, perm=[0, 3, 1, 2])
    else:
        if form == "elu":
            q, k = (b.node("Add", b.node("Elu", t), b.scalar(1.0)) for t in (q, k))
        elif form == "norm":  # softmax of queries over channels, of keys over rows
            q, k = b.node("Softmax", q, axis=-1), b.node("Softmax", k, axis=2)
        else:
            q, k = (b.node("Add", b.node("Relu", t), b.scalar(0.1)) for t in (q, k))
        kv = b.node("MatMul", b.node("Transpose", k, perm=[0, 1, 3, 2]), v)
        out = b.node("MatMul", q, kv)
        if form != "norm":
            total = b.node("ReduceSum", k, b.ints(2), keepdims=1)
            under = b.node("ReduceSum", b.node("Mul", q, total), b.ints(-1), keepdims=1)
            out = b.node("Div", out, b.node("Add", under, b.scalar(1e-4)))
        out = b.node("Transpose", out, perm=[0, 2, 1, 3])
    b.result(b.node("MatMul", b.reshape(out, 0, 0, heads * depth), b.weight(heads * depth, width)))
