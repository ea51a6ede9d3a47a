"""Attention with something that its fusion must see: another mask, scale, order, axis, reader or operand."""

from __future__ import annotations

import numpy as np

from tests.campaign.blocks.attention import _heads
from tests.campaign.blocks.block import BOOL, F32, I32, I64, Block, kind

LOW = (-np.inf, -1e4, -1e9, float(np.finfo(np.float32).min), -100.0, -10.0)
"""Numbers that hide a key, and two that only make its weight small."""


def drawn(b: Block, *names: str, most: int = 3) -> set[str]:
    """Up to ``most`` deviations from the usual form."""
    count = int(b.rng.integers(0, most + 1))
    return {str(name) for name in b.rng.choice(names, count, replace=False)}


def _hiding(low: float, share: float = 0.4, leave: int | None = 0):
    """A mask of 0 and ``low``; ``leave`` is a key that every query sees."""

    def make(rng, shape, sizes):
        mask = np.where(rng.random(shape) < share, low, 0.0)
        if leave is not None and shape[-1]:
            mask[..., leave] = 0
        return mask

    return make


def _padding(side: str):
    """1 for tokens, 0 for padding on one side of each row; every row has a token."""

    def make(rng, shape, sizes):
        lengths = rng.integers(1, shape[-1] + 1, (*shape[:-1], 1))
        places = np.arange(shape[-1])
        return places < lengths if side == "right" else places >= shape[-1] - lengths

    return make


def _ranges(b: Block, scores: str, rows_axis: int) -> tuple[str, str]:
    """Numbers of the rows, as a column, and of the keys."""

    def count(axis: int) -> str:
        extent = b.node("Squeeze", b.extent(scores, axis), b.ints(0))
        return b.node("Range", b.constant(np.int64(0)), extent, b.constant(np.int64(1)))

    return b.node("Unsqueeze", count(rows_axis), b.ints(1)), count(rows_axis + 1)


def _positions(b: Block, scores: str, rank: int) -> str:
    """Whether a query sees a key: causal, or causal of another diagonal or direction."""
    rows, keys = _ranges(b, scores, rank - 2)
    form = b.pick("causal", "causal", "before", "after", "later", "window", "strict window", "block")
    if form == "causal":
        return b.node("LessOrEqual", keys, rows)
    if form == "before":  # without its own key, but the first
        return b.node("Or", b.node("Less", keys, rows), b.node("Equal", keys, b.constant(np.int64(0))))
    if form == "after":
        return b.node("LessOrEqual", keys, b.node("Add", rows, b.constant(np.int64(1))))
    if form == "later":
        return b.node("GreaterOrEqual", keys, rows)
    if form == "block":
        two = b.constant(np.int64(2))
        return b.node("LessOrEqual", b.node("Div", keys, two), b.node("Div", rows, two))
    near = b.node("Less", b.node("Sub", rows, keys), b.constant(np.int64(3)))
    if form == "window":
        return b.node("And", near, b.node("LessOrEqual", keys, rows))
    return b.node("And", near, b.node("Less", b.node("Sub", keys, rows), b.constant(np.int64(3))))


def _replaced(b: Block, keep: str, scores: str, low: float) -> str:
    if b.chance():
        return b.node("Where", keep, scores, b.scalar(low))
    return b.node("Where", b.node("Not", keep), b.scalar(low), scores)


def _masked(b: Block, scores: str, batch: str | int, heads: int, rank: int, tag: str) -> str:
    """Scores under one mask; its shape broadcasts along any axes."""
    low = b.pick(*LOW)
    lead: tuple[int | str, ...] = (b.pick(batch, 1), b.pick(heads, 1))
    if rank == 3:
        lead = (b.pick(1, _folded(b, batch, heads)),) if isinstance(batch, int) else (1,)
    if rank == 2:
        lead = ()
    extents = (*lead, b.pick("s", 1), "t")
    while extents and extents[0] == 1 and b.chance():
        extents = extents[1:]
    form = b.pick("add", "add", "bool", "int", "positions", "positions", "padding", "column", "rows", "dense")
    if form == "dense":
        mask = b.feed(f"mask{tag}", F32, extents)
        return b.node(b.pick("Add", "Sub"), scores, mask)
    if form == "add":
        mask = b.feed(f"mask{tag}", F32, extents, _hiding(low, leave=b.pick(0, -1, 0)))
        return b.node("Add", *((scores, mask) if b.chance(0.7) else (mask, scores)))
    if form == "bool":
        keep = b.feed(f"keep{tag}", BOOL, extents, lambda rng, shape, sizes: _kept(rng, shape))
        return _replaced(b, keep, scores, low)
    if form == "int":
        keep = b.feed(f"keep{tag}", b.pick(I64, I32), extents, lambda rng, shape, sizes: _kept(rng, shape))
        if b.chance(0.4):
            return _replaced(b, b.node("Cast", keep, to=BOOL), scores, low)
        hidden = b.node("Sub", b.scalar(1.0), b.node("Cast", keep, to=F32))
        return b.node("Add", scores, b.node("Mul", hidden, b.scalar(max(low, -1e9))))
    if form == "positions":
        keep = _positions(b, scores, rank)
        if b.chance():
            return _replaced(b, keep, scores, low)
        mask = b.node("Where", keep, b.scalar(0.0), b.scalar(low))
        return b.node("Add", scores, mask)
    if form == "padding" and rank == 4:
        keep = b.feed(f"keep{tag}", I64, (batch, "t"), _padding(b.pick("left", "right")))
        keep = b.node("Cast", b.node("Unsqueeze", keep, b.ints(1, 2)), to=BOOL)
        if b.chance():
            return _replaced(b, keep, scores, low)
        return b.node("Add", scores, b.node("Where", keep, b.scalar(0.0), b.scalar(low)))
    if form == "rows":  # whole rows: each is uniform, or moved by a number
        hidden = b.feed(f"rows{tag}", F32, ("s", 1), _hiding(max(low, -1e4), 0.4, None))
        return b.node("Add", scores, hidden)
    if form == "column":
        return b.node("Add", scores, b.feed(f"bias{tag}", F32, ("t",)))
    return b.node("Add", scores, b.scalar(b.pick(1.0, -1e4)))


def _kept(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    keep = rng.random(shape) < 0.6
    if shape[-1]:
        keep[..., 0] = True
    return keep


def _folded(b: Block, batch: int, heads: int) -> int:
    return batch * heads


def _scaled(b: Block, q: str, k: str, depth: int, heads: int, rank: int) -> tuple[str, str, str | None]:
    """Queries and keys with their factors, and what the scores are multiplied by."""
    form = b.pick("scores", "scores", "q", "k", "both", "shape", "head", "row", "key", "element", "minus")
    number = b.pick(depth**-0.5, depth**-0.5, 0.3, 1.0, 2.0)
    if form == "q":
        return b.node("Mul", q, b.scalar(number)), k, None
    if form == "k":
        return q, b.node("Div", k, b.scalar(1 / number)), None
    if form == "both":
        return tuple(b.node("Mul", t, b.scalar(number**0.5)) for t in (q, k)) + (None,)
    if form == "shape":
        extent = b.node("Cast", b.extent(q, rank - 1), to=F32)
        root = b.node("Sqrt", extent)
        if b.chance():
            return b.node("Div", q, root), k, None
        return q, k, b.node("Div", b.scalar(1.0), root)
    if form == "head" and rank == 4:
        return q, k, b.weight(heads, 1, 1)
    if form == "row":
        return q, k, b.feed("temperature", F32, ("s", 1))
    if form == "key":
        return q, k, b.feed("temperature", F32, ("t",))
    if form == "element":
        return b.node("Mul", q, b.weight(depth)), k, None
    return q, k, b.scalar(-number if form == "minus" else number)


def _softmax(b: Block, scores: str, rank: int, odd: set[str]) -> str:
    axis = rank - 1
    if "axis" in odd:
        axis = b.pick(*range(rank))
    weights = b.node("Softmax", scores, axis=b.pick(axis, axis - rank))
    if "dropout" in odd:
        weights = b.node("Dropout", weights)
    if "guard" in odd:
        form = b.pick("nan", "nan", "one", "other")
        if form == "other":  # zero where another tensor is NaN
            weights = b.node("Where", b.node("IsNaN", scores), b.scalar(0.0), weights)
        else:
            zero = b.scalar(0.0 if form == "nan" else 1.0)
            weights = b.node("Where", b.node("IsNaN", weights), zero, weights)
    if "weights" in odd:
        form = b.pick("half", "add", "clip", "again", "renormal", "power", "keep")
        if form == "half":
            weights = b.node("Mul", weights, b.scalar(0.5))
        elif form == "add":
            weights = b.node("Add", weights, b.scalar(0.1))
        elif form == "clip":
            weights = b.node("Clip", weights, b.scalar(0.1), b.scalar(0.6))
        elif form == "again":
            weights = b.node("Softmax", weights, axis=-1)
        elif form == "renormal":
            total = b.node("ReduceSum", weights, b.ints(-1))
            weights = b.node("Div", weights, b.node("Add", total, b.scalar(1.0)))
        elif form == "power":
            weights = b.node("Mul", weights, weights)
        else:
            keep = b.feed("weights_kept", F32, ("s", "t"), lambda rng, shape, sizes: rng.random(shape) < 0.7)
            weights = b.node("Mul", weights, keep)
    return weights


def _strange(b: Block, scores: str) -> str:
    form = b.pick("Relu", "Abs", "Neg", "clip", "cap", "late cap", "square", "max", "twice")
    if form == "clip":
        return b.node("Clip", scores, b.scalar(-1.0), b.scalar(b.pick(1.0, 1e4)))
    if form == "cap":
        return b.node("Mul", b.node("Tanh", b.node("Mul", scores, b.scalar(0.2))), b.scalar(5.0))
    if form == "late cap":
        return b.node("Tanh", b.node("Add", scores, b.scalar(0.5)))
    if form == "square":
        return b.node("Mul", scores, scores)
    if form == "max":
        return b.node("Max", scores, b.scalar(-0.5))
    if form == "twice":
        return b.node("Add", scores, b.node("Mul", scores, b.scalar(0.5)))
    return b.node(form, scores)


def _values(b: Block, q: str, k: str, v: str, odd: set[str]) -> tuple[str, str, str]:
    if "keys are queries" in odd:
        k = q
    if "values are keys" in odd:
        v = k
    if "values are queries" in odd:
        v = q
    return q, k, v


@kind
def near_attention(b: Block) -> None:
    """Attention of heads, with up to four deviations."""
    odd = drawn(
        b, "axis", "dropout", "guard", "weights", "strange", "keys are queries", "values are keys",
        "values are queries", "second mask", "scores out", "weights out", "weights twice", "late scale",
        "output order", "heads order", "rows order", "residual", "values scaled", "scores twice", most=3,
    )  # fmt: skip
    heads, depth, width = b.pick(1, 2, 3, 4), b.pick(1, 4, 5, 8, 16), b.pick(6, 16)
    same = bool(odd & {"keys are queries", "values are queries"})
    batch = b.size("b", 1, 3)
    b.size("s", 1, 11)
    cross = b.chance(0.5) and not same
    if cross:
        b.size("t", 1, 13)
    else:
        b.ranges["t"] = b.ranges["s"]
    x = b.feed("x", F32, ("b", "s", width))
    y = b.feed("memory", F32, ("b", "t", width)) if cross else x
    groups = heads // 2 if heads % 2 == 0 and b.chance(0.3) and not same else heads
    q, k, v = (
        b.node("MatMul", source, b.weight(width, count * depth))
        for source, count in ((x, heads), (y, groups), (y, groups))
    )
    if b.chance(0.4):
        q, k = b.node("Add", q, b.weight(heads * depth)), b.node("Add", k, b.weight(groups * depth))
    q, k, v = _heads(b, q, heads, depth), _heads(b, k, groups, depth), _heads(b, v, groups, depth)
    if groups != heads:
        if b.chance(0.4):  # heads in another order than repeated ones
            k, v = (b.node("Tile", t, b.ints(1, 2, 1, 1)) for t in (k, v))
        else:
            order = np.repeat(np.arange(groups), 2)
            k, v = (b.node("Gather", t, b.constant(order), axis=1) for t in (k, v))
    if "heads order" in odd:
        v = b.node("Slice", v, b.ints(-1), b.ints(-(1 << 62)), b.ints(1), b.ints(-1))
    if "rows order" in odd:
        k = b.node("Slice", k, b.ints(-1), b.ints(-(1 << 62)), b.ints(2), b.ints(-1))
    q, k, v = _values(b, q, k, v, odd)
    q, k, factor = _scaled(b, q, k, depth, heads, 4)
    scores = b.node("MatMul", q, b.node("Transpose", k, perm=[0, 1, 3, 2]))
    if factor and "late scale" not in odd:
        scores = b.node("Mul", scores, factor)
    if "scores out" in odd:
        b.result(scores)
    if "strange" in odd and b.chance():
        scores = _strange(b, scores)
    if b.chance(0.75):
        scores = _masked(b, scores, batch, heads, 4, "")
    if "second mask" in odd:
        scores = _masked(b, scores, batch, heads, 4, "2")
    if factor and "late scale" in odd:
        scores = b.node("Mul", scores, factor)
    if "strange" in odd and b.chance():
        scores = _strange(b, scores)
    weights = _softmax(b, scores, 4, odd)
    if "scores twice" in odd:
        b.result(b.node("ReduceMax", scores, axes=[3]))
    if "weights out" in odd:
        b.result(weights)
    if "values scaled" in odd:
        v = b.node("Mul", v, b.pick(b.scalar(0.5), b.weight(depth), b.weight(heads, 1, 1)))
    out = b.node("MatMul", weights, v)
    if "weights twice" in odd:
        b.result(b.node("MatMul", weights, b.node("Tanh", v)))
    if "output order" in odd:
        perm = b.pick([0, 1, 2, 3], [0, 2, 3, 1], [2, 0, 1, 3], [0, 3, 1, 2], [1, 2, 0, 3])
        b.result(b.node("Transpose", out, perm=perm))
        if b.chance():
            b.result(b.reshape(out, 0, -1, heads * depth))  # merged without a transposition
    else:
        out = b.node("Transpose", out, perm=[0, 2, 1, 3])
        out = b.reshape(out, b.extent(x, 0), -1, heads * depth)
        if b.chance(0.6):
            out = b.node("MatMul", out, b.weight(heads * depth, width))
            if "residual" in odd:
                other = b.pick(b.weight(width), b.weight(1, 1, 1), b.node("ReduceMean", x, axes=[1]))
                out = b.node("Add", out, other)
            else:
                out = b.node("Add", out, x)
        b.result(out)
    if not cross:
        b.rename("t", "s")


@kind
def near_plain_attention(b: Block) -> None:
    """Attention without heads, of two or three axes, of tensors as they are given."""
    odd = drawn(
        b, "axis", "weights", "guard", "strange", "keys are queries", "values are keys", "second mask",
        "weights out", "turned", "late scale", "scores twice", most=2,
    )  # fmt: skip
    rank, depth = b.pick(2, 3, 3), b.pick(1, 4, 6, 8)
    same = "keys are queries" in odd
    b.size("s", 1, 9)
    if same:
        b.ranges["t"] = b.ranges["s"]
    else:
        b.size("t", 1, 12)
    batch = int(b.rng.integers(1, 4))
    lead = (batch,) if rank == 3 else ()
    q = b.feed("q", F32, (*lead, "s", depth))
    k = q if same else b.feed("k", F32, (*(lead if b.chance(0.8) else (1,) * len(lead)), "t", depth))
    v = k if "values are keys" in odd else b.feed("v", F32, (*lead, "t", b.pick(depth, 3)))
    q, keys, factor = _scaled(b, q, k, depth, 1, rank)
    if "turned" in odd:  # the softmax runs over queries of a product of keys and queries
        scores = b.node("MatMul", keys, b.node("Transpose", q, perm=[*range(rank - 2), rank - 1, rank - 2]))
        scores = b.node("Transpose", scores, perm=[*range(rank - 2), rank - 1, rank - 2])
    else:
        scores = b.node("MatMul", q, b.node("Transpose", keys, perm=[*range(rank - 2), rank - 1, rank - 2]))
    if factor and "late scale" not in odd:
        scores = b.node("Mul", scores, factor)
    if "strange" in odd:
        scores = _strange(b, scores)
    if b.chance(0.7):
        scores = _masked(b, scores, batch, 1, rank, "")
    if "second mask" in odd:
        scores = _masked(b, scores, batch, 1, rank, "2")
    if factor and "late scale" in odd:
        scores = b.node("Mul", scores, factor)
    weights = _softmax(b, scores, rank, odd)
    if "scores twice" in odd:
        b.result(b.node("ReduceSum", scores, b.ints(-1)))
    if "weights out" in odd:
        b.result(weights)
    out = b.node("MatMul", weights, v)
    b.result(b.node("Add", out, b.scalar(1.0)) if b.chance(0.3) else out)
    if same:
        b.rename("t", "s")
