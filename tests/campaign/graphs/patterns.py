"""Steps that add what fusions match, and what they nearly match.

The near misses matter most: another axis, an epsilon at another place, a factor that is used twice, a mask
with another broadcast, or a value in the middle that is a result of the graph as well.
"""

from __future__ import annotations

import math

import numpy as np

from tests.campaign.graphs.builder import Builder
from tests.campaign.graphs.products import WIDE
from tests.campaign.graphs.registry import pattern
from tests.campaign.graphs.shaping import ints, with_axes
from tests.campaign.graphs.values import FLOATS, Rejected, Value, onnx_type


def peek(b: Builder, value: Value, p: float = 0.06) -> Value:
    """Make a value in the middle of a pattern a result, or something that another node reads as well."""
    if b.chance(p):
        b.output(value) if b.chance(0.6) else b.op("Neg", [value])
    return value


def scalar(b: Builder, number: float, dtype: str) -> Value:
    """A constant factor in one of the shapes that exporters write."""
    return b.const(np.full(b.one([(), (), (1,), (1, 1)]), number), dtype)


def rows(b: Builder, low: int = 2, high: int = 4, dtypes=WIDE) -> Value:
    """Something whose last axis is normalised or multiplied."""
    return b.pick(
        dtypes,
        low,
        high,
        where=lambda v: 0 not in v.shape and v.shape[-1] <= 64,
        shape=lambda: (
            *(b.number(1, 4) for _ in range(b.number(low, high) - 1)),
            b.one([4, 6, 8, 12, 16, 24, 5]),
        ),
    )


def reduced(b: Builder, op: str, x: Value, axes, keep: int = 1) -> Value:
    return with_axes(b, op, x, axes, 13 if op == "ReduceSum" else 18, keepdims=keep)


def linear(b: Builder, x: Value, n: int, bias: float = 0.6) -> Value:
    """x @ W (+ b), in one of its spellings."""
    k = x.shape[-1]
    if x.rank == 2 and b.chance(0.3):
        w = b.weight(x.dtype, (n, k), -0.6, 0.6)
        return b.op("Gemm", [x, w, b.weight(x.dtype, (n,))], transB=1)
    w = b.weight(x.dtype, (k, n), -0.6, 0.6)
    if b.chance(0.2):
        stored = b.weight(x.dtype, (n, k), -0.6, 0.6)
        w = b.op("Transpose", [stored], perm=[1, 0])
    y = peek(b, b.op("MatMul", [x, w]))
    if b.chance(bias):
        c = b.weight(x.dtype, b.one([(n,), (n,), (1, n), ()]))
        y = b.op("Add", [y, c] if b.chance(0.6) else [c, y])
    return y


@pattern(4)
def layer_norm(b: Builder) -> None:
    x = rows(b)
    axes = [-1] if b.opset >= 11 and b.chance(0.7) else [x.rank - 1]
    if b.chance(0.15):
        axes = b.one([[0], list(range(1, x.rank))])
    mean = peek(b, reduced(b, "ReduceMean", x, axes))
    other = x if b.chance(0.93) else b.op("Add", [x, scalar(b, 0.5, x.dtype)])
    centered = peek(b, b.op("Sub", [other, mean] if b.chance(0.95) else [mean, other]))
    if b.chance(0.6):
        square = b.op("Pow", [centered, scalar(b, 2.0 if b.chance(0.93) else 4.0, x.dtype)])
    else:
        square = b.op("Mul", [centered, centered])
    variance = peek(
        b,
        reduced(b, "ReduceMean" if b.chance(0.94) else "ReduceSum", square, axes if b.chance(0.95) else [0]),
    )
    epsilon = scalar(b, b.one([1e-5, 1e-3, 0.1]), x.dtype)
    if b.chance(0.85):
        deviation = b.op("Sqrt", [b.op("Add", [variance, epsilon])])
    else:
        deviation = b.op("Add", [b.op("Sqrt", [variance]), epsilon])
    if b.chance(0.8):
        y = b.op("Div", [centered, deviation])
    else:
        y = b.op("Mul", [centered, b.op("Reciprocal", [deviation])])
    _scale_and_shift(b, peek(b, y))


def _scale_and_shift(b: Builder, y: Value) -> Value:
    n = y.shape[-1]
    for op in ("Mul", "Add"):
        if b.chance(0.8):
            shape = b.one([(n,), (n,), (n,), (), (1, n), y.shape, (y.shape[-2], 1)])
            part = b.fresh(y.dtype, shape, p_const=0.85)
            y = b.op(op, [y, part] if b.chance(0.6) else [part, y])
            peek(b, y)
    return y


@pattern(3)
def rms_norm(b: Builder) -> None:
    x = rows(b)
    axes = [x.rank - 1] if b.chance(0.85) else [0]
    square = b.op("Pow", [x, scalar(b, 2.0, x.dtype)]) if b.chance(0.6) else b.op("Mul", [x, x])
    mean = peek(b, reduced(b, b.one(["ReduceMean", "ReduceMean", "ReduceMean", "ReduceSum"]), square, axes))
    epsilon = scalar(b, b.one([1e-6, 1e-3, 0.1]), x.dtype)
    if b.chance(0.85):
        root = b.op("Sqrt", [b.op("Add", [mean, epsilon])])
    else:
        root = b.op("Add", [b.op("Sqrt", [mean]), epsilon])
    kind = b.number(0, 3)
    if kind == 0:
        y = b.op("Div", [x, root])
    elif kind == 1:
        y = b.op("Mul", [x, b.op("Reciprocal", [root])])
    elif kind == 2:
        y = b.op("Mul", [x, b.op("Div", [scalar(b, b.one([1.0, 1.0, 2.0]), x.dtype), root])])
    else:
        other = b.op("Abs", [x])
        y = b.op("Div", [other, root])
    _scale_and_shift(b, peek(b, y))


@pattern(4)
def gelu(b: Builder) -> None:
    x = b.pick(WIDE)
    kind = b.number(0, 2)
    if kind == 0:
        root = b.one([math.sqrt(2)] * 6 + [1.5, 2.0])
        inner = (
            b.op("Div", [x, scalar(b, root, x.dtype)])
            if b.chance(0.6)
            else b.op("Mul", [x, scalar(b, 1 / root, x.dtype)])
        )
        gate = b.op("Add", [peek(b, b.op("Erf", [inner])), scalar(b, b.one([1.0] * 6 + [0.9]), x.dtype)])
    elif kind == 1:
        cube = (
            b.op("Pow", [x, scalar(b, b.one([3.0] * 7 + [2.0]), x.dtype)])
            if b.chance(0.6)
            else b.op("Mul", [b.op("Mul", [x, x]), x])
        )
        inner = b.op("Add", [x, b.op("Mul", [cube, scalar(b, b.one([0.044715] * 6 + [0.05]), x.dtype)])])
        gate = b.op("Tanh", [b.op("Mul", [inner, scalar(b, math.sqrt(2 / math.pi), x.dtype)])])
        gate = b.op("Add", [peek(b, gate), scalar(b, 1.0, x.dtype)])
    else:
        gate = b.op("Sigmoid", [b.op("Mul", [x, scalar(b, b.one([1.702, 1.0, 1.5]), x.dtype)])])
        b.op("Mul", [x, peek(b, gate)])
        return
    half = scalar(b, b.one([0.5] * 7 + [0.25]), x.dtype)
    other = x if b.chance(0.94) else b.op("Relu", [x])
    order = b.number(0, 2)
    if order == 0:
        b.op("Mul", [peek(b, b.op("Mul", [other, gate])), half])
    elif order == 1:
        b.op("Mul", [other, b.op("Mul", [gate, half])])
    else:
        b.op("Mul", [b.op("Mul", [half, other]), gate])


@pattern(3)
def activations(b: Builder) -> None:
    x = b.pick(WIDE)
    kind = b.number(0, 3)
    if kind == 0:
        b.op("Mul", [x, peek(b, b.op("Sigmoid", [x]))])
    elif kind == 1:
        b.op("Mul", [x, b.op("Tanh", [b.op("Softplus", [x])])])
    elif kind == 2:
        inner = b.op("Add", [x, scalar(b, b.one([3.0, 3.0, 2.0]), x.dtype)])
        six = (
            b.op("Clip", [inner], min=0.0, max=6.0)
            if b.opset < 11
            else b.op("Clip", [inner, b.const(0, x.dtype), b.const(6, x.dtype)])
        )
        b.op("Div", [b.op("Mul", [x, six]), scalar(b, 6.0, x.dtype)])
    else:
        b.op("Mul", [x, b.op("HardSigmoid", [x], alpha=b.one([1 / 6, 0.2]), beta=0.5)])


@pattern(4)
def gated_mlp(b: Builder) -> None:
    x = rows(b, 2, 3)
    n = b.one([4, 8, 12, 16, 7])
    gate, up = linear(b, x, n, 0.2), linear(b, x if b.chance(0.92) else b.op("Neg", [x]), n, 0.2)
    kind = b.one(["silu", "silu", "gelu", "relu", "sigmoid"])
    if kind == "silu":
        active = b.op("Mul", [gate, b.op("Sigmoid", [gate if b.chance(0.93) else up])])
    elif kind == "gelu":
        erf = b.op("Erf", [b.op("Div", [gate, scalar(b, math.sqrt(2), x.dtype)])])
        active = b.op(
            "Mul", [b.op("Mul", [gate, b.op("Add", [erf, scalar(b, 1.0, x.dtype)])]), scalar(b, 0.5, x.dtype)]
        )
    else:
        active = b.op(kind.capitalize(), [gate])
    hidden = b.op("Mul", [peek(b, active), peek(b, up)] if b.chance(0.7) else [up, active])
    if b.chance(0.7):
        y = linear(b, hidden, x.shape[-1])
        b.op("Add", [y, x])


@pattern(3)
def merged_gate(b: Builder) -> None:
    """One product that is cut into the gate and what it gates."""
    x = rows(b, 2, 3)
    n = b.one([4, 8, 6])
    both = linear(b, x, 2 * n, 0.3)
    if b.chance(0.5):
        extra = {"num_outputs": 2} if b.opset >= 18 else {}
        left, right = b.node("Split", [both], 2, axis=both.rank - 1, **extra)
    elif b.opset >= 10:
        left, right = (
            b.op("Slice", [both, ints(b, [s]), ints(b, [e]), ints(b, [both.rank - 1])])
            for s, e in ((0, n), (n, 2 * n))
        )
    else:
        raise Rejected("old Slice")
    if b.chance(0.3):
        left, right = right, left
    b.op("Mul", [left, b.op(b.one(["Sigmoid", "Tanh", "Relu"]), [right])])


@pattern(5)
def dense(b: Builder) -> None:
    """A product with bias, activation, scale and residual in some order."""
    x = rows(b)
    n = b.one([x.shape[-1], x.shape[-1], 8, 16, 5])
    y = linear(b, x, n)
    for _ in range(b.number(0, 3)):
        kind = b.number(0, 5)
        if kind == 0:
            y = b.op(
                b.one(
                    ["Relu", "Tanh", "Sigmoid", "LeakyRelu", "Elu", "HardSwish" if b.opset >= 14 else "Relu"]
                ),
                [y],
            )
        elif kind == 1:
            y = b.op("Mul", [y, scalar(b, b.one([0.5, 0.125, 2.0]), y.dtype)])
        elif kind == 2 and n == x.shape[-1]:
            y = b.op("Add", [y, x] if b.chance(0.5) else [x, y])
        elif kind == 3:
            y = b.op(b.one(["Add", "Mul", "Sub"]), [y, b.partner(y)])
        elif kind == 4:
            y = b.op("Mul", [y, b.weight(y.dtype, (n,))])
        else:
            y = linear(b, y, b.one([4, 8, n]))
            n = y.shape[-1]
        peek(b, y)


@pattern(3)
def scales_around_products(b: Builder) -> None:
    x = rows(b)
    before = b.op("Mul", [x, b.weight(x.dtype, b.one([(), (x.shape[-1],), (x.shape[-2], 1)]))])
    y = b.op("MatMul", [peek(b, before), b.weight(x.dtype, (x.shape[-1], 6), -0.6, 0.6)])
    y = b.op(b.one(["Mul", "Div"]), [y, b.weight(x.dtype, b.one([(), (6,), (1,), (y.shape[-2], 1)]), 0.5, 2)])
    if b.chance(0.5):
        b.op("MatMul", [peek(b, y), b.weight(x.dtype, (6, 5), -0.6, 0.6)])
    if b.chance(0.3):
        b.op("Mul", [before, scalar(b, 3.0, x.dtype)])


@pattern(3)
def softmax_by_hand(b: Builder) -> None:
    x = rows(b)
    axes = [x.rank - 1] if b.chance(0.8) else [0]
    top = reduced(b, "ReduceMax", x, axes)
    e = b.op("Exp", [b.op("Sub", [x, top if b.chance(0.9) else peek(b, b.op("Neg", [top]))])])
    total = reduced(b, "ReduceSum", e, axes if b.chance(0.92) else [b.number(0, x.rank - 1)])
    y = b.op("Div", [peek(b, e), peek(b, total)])
    if b.chance(0.3):
        b.op("Log", [b.op("Add", [y, scalar(b, 1e-3, x.dtype)])])


@pattern(3)
def add_and_norm(b: Builder) -> None:
    if b.opset < 17:
        layer_norm(b)
        return
    x = rows(b)
    other = b.partner(x)
    total = b.op("Add", [x, other] if b.chance(0.6) else [other, x])
    if b.chance(0.3):
        total = b.op("Add", [total, b.weight(x.dtype, (x.shape[-1],))])
    peek(b, total, 0.35)
    n = total.shape[-1]
    y = b.op("LayerNormalization", [total, b.weight(x.dtype, (n,)), b.weight(x.dtype, (n,))], axis=-1)
    if b.chance(0.5):
        b.op("Add", [y, total])


@pattern(2)
def embedding(b: Builder) -> None:
    """Rows of tables, added, and normalised."""
    width, batch, length = b.one([4, 8, 12]), b.number(1, 2), b.number(1, 6)
    parts = []
    for _ in range(b.number(1, 3)):
        count = b.number(2, 9)
        table = b.weight("float32", (count, width))
        shape = b.one([(batch, length), (batch, length), (1, length), (length,)])
        ids = b.fresh(
            b.one(["int64", "int32"]), shape, -count if b.opset >= 11 and b.chance(0.2) else 0, count - 1, 0.3
        )
        parts.append(b.op("Gather", [table, ids], axis=0))
    total = parts[0]
    for part in parts[1:]:
        total = b.op("Add", [total, part])
    peek(b, total, 0.2)
    if b.opset >= 17 and b.chance(0.8):
        b.op(
            "LayerNormalization",
            [total, b.weight("float32", (width,)), b.weight("float32", (width,))],
            axis=-1,
        )


@pattern(4)
def views(b: Builder) -> None:
    """A chain of reshapes, transposes, slices and joins."""
    from tests.campaign.graphs import shaping

    for _ in range(b.number(2, 6)):
        b.one(
            [
                shaping.reshape,
                shaping.transpose,
                shaping.slices,
                shaping.concat,
                shaping.unsqueeze,
                shaping.squeeze,
                shaping.split,
                shaping.expand,
                shaping.flatten,
                shaping.pad,
            ]
        )(b)


@pattern(3)
def turned_products(b: Builder) -> None:
    """Transposes before and behind a product."""
    x = b.pick(FLOATS, 2, 4, where=lambda v: 0 not in v.shape and max(v.shape) <= 20)
    perm = [int(p) for p in b.rng.permutation(x.rank)]
    a = b.op("Transpose", [x], perm=perm)
    other = [int(p) for p in b.rng.permutation(x.rank)]
    c = b.op("Transpose", [x], perm=other)
    if a.shape[-1] != c.shape[-2]:
        c = b.fresh(x.dtype, (*a.shape[:-2], a.shape[-1], b.number(1, 8)), -0.7, 0.7)
    y = peek(b, b.op("MatMul", [a, c]))
    b.op("Transpose", [y], perm=[int(p) for p in b.rng.permutation(y.rank)])


@pattern(1.5)
def cast_pairs(b: Builder) -> None:
    """Casts around operators, as half-precision exporters write them."""
    x = b.pick(WIDE)
    to = b.one(WIDE)
    y = b.op("Cast", [x], to=onnx_type(to))
    y = b.op(b.one(["Relu", "Sigmoid", "Abs", "Neg"]), [y])
    b.op("Cast", [y], to=onnx_type(x.dtype))
