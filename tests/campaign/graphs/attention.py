"""Steps that add attention, rotary embeddings and what stands around them, in many spellings."""

from __future__ import annotations

import math

import numpy as np

from tests.campaign.graphs.builder import Builder
from tests.campaign.graphs.patterns import linear, peek, scalar
from tests.campaign.graphs.registry import pattern
from tests.campaign.graphs.shaping import ints
from tests.campaign.graphs.values import Rejected, Value, onnx_type


def _sequence(b: Builder, width: int) -> Value:
    return b.pick(
        ("float32",),
        3,
        3,
        where=lambda v: v.shape[2] == width and 0 < v.shape[1] <= 9 and v.shape[0] <= 3,
        shape=lambda: (b.number(1, 2), b.number(1, 7), width),
    )


def _heads(b: Builder, x: Value, heads: int, kind: int) -> Value:
    """(batch, sequence, width) -> (batch, heads, sequence, size), or one of its spellings."""
    batch, length, width = x.shape
    batch_or_copy = 0 if b.chance(0.3) else batch
    x = b.op("Reshape", [x, ints(b, [batch_or_copy, length if b.chance(0.7) else -1, heads, width // heads])])
    if kind == 1:
        x = b.op("Transpose", [x], perm=[0, 2, 3, 1])  # keys, turned already
    else:
        x = b.op("Transpose", [x], perm=[0, 2, 1, 3])
    return x


def _mask(b: Builder, batch: int, heads: int, rows: int, columns: int) -> Value:
    shape = b.one(
        [
            (batch, 1, 1, columns),
            (1, 1, rows, columns),
            (rows, columns),
            (batch, heads, rows, columns),
            (batch, 1, rows, columns),
            (columns,),
            (1, heads, 1, columns),
            (rows, 1),
            (1, heads, rows, 1),
        ]
    )
    kind = b.number(0, 3)
    if kind == 0:  # causal
        low = b.one([-1e4, -3.4028235e38, -np.inf]) if b.special else -1e4
        return b.const(np.where(np.tri(rows, columns, columns - rows) > 0, 0.0, low), "float32")
    if kind == 1:
        return b.fresh("float32", shape, -2, 2)
    if kind == 2:
        keep = b.op("Cast", [b.source("int64", shape, 0, 1)], to=onnx_type("float32"))
        return b.op("Mul", [b.op("Sub", [b.const(1.0, "float32"), keep]), b.const(-1e4, "float32")])
    return b.const(b.rng.uniform(-1, 1, shape), "float32")


def rotary(b: Builder, x: Value, first: int = 0) -> Value:
    """x * cos + rotate_half(x) * sin over the last axis, or nearly."""
    length, size = x.shape[-2], x.shape[-1]
    if size % 2 or b.opset < 10:
        raise Rejected("odd")
    half = size // 2
    angles = np.outer(np.arange(first, first + length), 1.0 / 10000 ** (np.arange(half) / half))
    both = np.concatenate([angles, angles], -1)
    shape = b.one([(length, size), (1, 1, length, size)])
    cos, sin = (b.const(f(both).reshape(shape), "float32") for f in (np.cos, np.sin))
    if b.chance(0.4):
        extra = {"num_outputs": 2} if b.opset >= 18 else {}
        left, right = b.node("Split", [x], 2, axis=-1 if b.opset >= 11 else x.rank - 1, **extra)
    else:
        axis = [x.rank - 1]
        left = b.op("Slice", [x, ints(b, [0]), ints(b, [half]), ints(b, axis)])
        right = b.op("Slice", [x, ints(b, [half]), ints(b, [b.one([size, 2**63 - 1])]), ints(b, axis)])
    if b.chance(0.9):
        turned = b.op("Concat", [b.op("Neg", [right]), left], axis=x.rank - 1)
    else:
        turned = b.op("Concat", [right, b.op("Neg", [left])], axis=x.rank - 1)
    pair = [b.op("Mul", [x, cos]), b.op("Mul", [turned, sin])]
    return b.op("Add" if b.chance(0.94) else "Sub", pair)


@pattern(9)
def attention(b: Builder) -> None:
    heads, size = b.one([1, 2, 3, 4]), b.one([2, 4, 8, 6])
    x = _sequence(b, heads * size)
    batch, length, width = x.shape
    memory = x if b.chance(0.75) else _sequence(b, width)
    if memory.shape[0] != batch:
        memory = x
    columns = memory.shape[1]
    turned = b.number(0, 1)
    if memory is x and b.chance(0.25):
        merged = linear(b, x, 3 * width)
        extra = {"num_outputs": 3} if b.opset >= 18 else {}
        q, k, v = b.node("Split", [merged], 3, axis=2, **extra)
    else:
        bias = b.one([0.0, 1.0, 0.5])
        q, k, v = linear(b, x, width, bias), linear(b, memory, width, bias), linear(b, memory, width, bias)
    q = _heads(b, q, heads, 0)
    if b.chance(0.12) and heads % 2 == 0:  # grouped queries
        few = heads // 2
        k, v = (linear(b, memory, few * size) for _ in range(2))
        k, v = (_heads(b, t, few, 0) for t in (k, v))
        k, v = (
            b.op(
                "Reshape",
                [
                    b.op(
                        "Expand",
                        [
                            b.op("Reshape", [t, ints(b, [batch, few, 1, columns, size])]),
                            ints(b, [batch, few, 2, columns, size]),
                        ],
                    ),
                    ints(b, [batch, heads, columns, size]),
                ],
            )
            for t in (k, v)
        )
        turned = 0
    else:
        k, v = _heads(b, k, heads, turned), _heads(b, v, heads, 0)
    if not turned and b.chance(0.25):
        q, k = rotary(b, q), rotary(b, k)
    factor = 1 / math.sqrt(size) if b.chance(0.85) else 0.3
    place = b.number(0, 3)
    if place == 1:
        q = b.op("Mul", [q, scalar(b, factor, "float32")])
    elif place == 2:
        q, k = (b.op("Mul", [t, scalar(b, math.sqrt(factor), "float32")]) for t in (q, k))
    keys = k if turned else b.op("Transpose", [k], perm=[0, 1, 3, 2])
    scores = b.op("MatMul", [peek(b, q), peek(b, keys)])
    if place == 0:
        scores = b.op("Div", [scores, scalar(b, 1 / factor, "float32")])
    elif place == 3:
        scores = b.op("Mul", [scores, scalar(b, factor, "float32")])
    peek(b, scores, 0.08)
    if b.chance(0.5):
        mask = _mask(b, batch, heads, length, columns)
        scores = b.op("Add", [scores, mask] if b.chance(0.8) else [mask, scores])
    elif b.chance(0.4) and b.opset >= 9:
        shape = b.one([(batch, 1, 1, columns), (1, 1, length, columns), (length, columns)])
        keep = b.op("Cast", [b.source("int64", shape, 0, 1)], to=onnx_type("bool"))
        low = b.const(b.one([-1e4, -np.inf]) if b.special else -1e4, "float32")
        scores = b.op("Where", [keep, *([scores, low] if b.chance(0.7) else [low, scores])])
    if b.opset >= 13 or b.chance(0.5):
        axis = 3 if b.chance(0.9) else 2
        p = b.op("Softmax", [scores], axis=axis if b.opset < 13 or axis == 2 else -1)
    else:
        e = b.op("Exp", [b.op("Tanh", [scores])])
        p = b.op("Div", [e, b.op("ReduceSum", [e], axes=[3], keepdims=1)])
    peek(b, p, 0.1)
    if b.chance(0.08):
        p = b.op("Mul", [p, scalar(b, 0.5, "float32")])
    y = peek(b, b.op("MatMul", [p, v]))
    if b.chance(0.93):
        y = b.op("Transpose", [y], perm=[0, 2, 1, 3])
    y = b.op("Reshape", [y, ints(b, [batch, length, width])])
    if b.chance(0.7):
        y = linear(b, y, width)
        if b.chance(0.6):
            b.op("Add", [x, y])


@pattern(3)
def attention_of_three_axes(b: Builder) -> None:
    """Scores of batches without heads, q k and v from anywhere."""
    size = b.one([2, 4, 8, 5])
    q = _sequence(b, size)
    batch, length, _ = q.shape
    columns = b.number(1, 8)
    k, v = (b.fresh("float32", (batch, columns, n)) for n in (size, b.one([size, size, 3])))
    scores = b.op("MatMul", [q, b.op("Transpose", [k], perm=[0, 2, 1])])
    if b.chance(0.7):
        scores = b.op("Mul", [scores, scalar(b, b.one([0.5, 0.25, 1 / math.sqrt(size)]), "float32")])
    if b.chance(0.4):
        shape = b.one(
            [(length, columns), (batch, 1, columns), (1, length, columns), (columns,), (batch, length, 1)]
        )
        scores = b.op("Add", [scores, b.fresh("float32", shape)])
    p = b.op("Softmax", [peek(b, scores)], axis=2 if b.chance(0.9) else 1)
    b.op("MatMul", [peek(b, p), v])


@pattern(2)
def rotary_alone(b: Builder) -> None:
    x = b.pick(
        ("float32",),
        3,
        4,
        where=lambda v: 0 not in v.shape and v.shape[-1] % 2 == 0 and v.shape[-1] <= 32,
        shape=lambda: (b.number(1, 2), b.number(1, 3), b.number(1, 6), b.one([2, 4, 8])),
    )
    rotary(b, x, b.one([0, 0, 3]))


@pattern(1)
def attention_operator(b: Builder) -> None:
    """Attention and RotaryEmbedding as operators of ONNX."""
    if b.opset < 23:
        raise Rejected("no such operator")
    batch, length, columns, heads, size = (
        b.number(1, 2),
        b.number(1, 5),
        b.number(1, 6),
        b.one([1, 2, 4]),
        b.one([2, 4]),
    )
    q = b.fresh("float32", (batch, heads, length, size), p_const=0.1)
    if b.chance(0.3):
        half = size // 2
        cache = [b.weight("float32", (12, half)) for _ in range(2)]
        at = b.fresh("int64", (batch, length), 0, 11)
        b.op("RotaryEmbedding", [q, *cache, at], interleaved=b.one([None, 0, 1]))
        return
    k, v = (b.fresh("float32", (batch, heads, columns, size)) for _ in range(2))
    mask = []
    if b.chance(0.5):
        shape = b.one([(length, columns), (batch, 1, length, columns), (batch, heads, length, columns)])
        mask = [b.fresh("float32", shape) if b.chance(0.6) else b.source("bool", shape)]
    b.op(
        "Attention",
        [q, k, v, *mask],
        is_causal=b.one([None, 0, 1]),
        scale=b.one([None, 0.5]),
        softcap=b.one([None, None, 2.0]),
    )


@pattern(1)
def merged_projections(b: Builder) -> None:
    """Several products of one operand, of which some are merged."""
    width = b.one([4, 8, 6])
    x = _sequence(b, width)
    results = [linear(b, x, b.one([width, width, 4])) for _ in range(b.number(2, 4))]
    for y in results:
        if b.chance(0.6):
            b.op(b.one(["Relu", "Tanh", "Neg"]), [y])
