"""Norms and activations written out, and what nearly is one: other axes, factors, orders, readers."""

from __future__ import annotations

import math

import numpy as np

from tests.campaign.blocks.block import F16, F32, F64, Block, kind
from tests.campaign.blocks.near_attention import drawn


def _rows(rng: np.random.Generator, shape: tuple[int, ...], sizes) -> np.ndarray:
    """Rows of which some are constant, zero, or far from 0."""
    x = rng.standard_normal(shape)
    if shape[0]:
        form = rng.integers(0, 5)
        row = int(rng.integers(0, shape[0]))
        if form == 0:
            x[row] = 0.25
        elif form == 1:
            x[row] = 0
        elif form == 2:
            x[row] = x[row] * 0.5 + 30
    return x


def _source(b: Block, x: str, width: int) -> str:
    """What is normalised: an input, a product, a sum, a product with a residual."""
    form = b.pick("input", "input", "product", "sum", "residual", "activation")
    if form == "input":
        return x
    if form == "sum":
        return b.node("Add", x, b.pick(b.weight(width), b.node("Tanh", x)))
    if form == "activation":
        return b.node("Relu", x)
    y = b.node("MatMul", x, b.weight(width, width))
    return b.node("Add", y, x) if form == "residual" else y


def _reduced(b: Block, x: str, axes: list[int], keep: bool = True, sums: int = 0) -> str:
    """Mean over axes; ``sums`` is the number that a sum is divided by instead."""
    if sums:
        total = b.node("ReduceSum", x, b.ints(*axes), keepdims=int(keep))
        return b.node("Div", total, b.scalar(float(sums)))
    return b.node("ReduceMean", x, axes=axes, keepdims=int(keep))


def _affine(b: Block, y: str, width: int, rank: int) -> str:
    for op in b.pick(("Mul", "Add"), ("Add", "Mul"), ("Mul",), ("Add",), ("Sub", "Div"), ()):
        shape = b.pick((width,), (width,), (1, width), (), (1,), (1,) * (rank - 1) + (width,))
        if op in ("Mul", "Add") and b.chance(0.12):
            y = b.node(op, y, b.feed(f"affine_{op}", F32, (width,)))
        elif b.chance(0.1):
            y = b.node(op, b.weight(*shape), y) if op != "Div" else y
        else:
            y = b.node(op, y, b.weight(*shape))
    return y


@kind
def near_norms(b: Block) -> None:
    """A layer or RMS norm, with up to three deviations."""
    odd = drawn(
        b, "axes", "other axes", "dropped", "epsilon behind", "no epsilon", "unbiased", "power", "sum",
        "inverse power", "variance out", "other mean", "swapped", "added base", "root out", "wide", "narrow",
        "scaled variance", "negative", "greatest", "half", most=3,
    )  # fmt: skip
    width, rows = b.pick(1, 3, 8, 16, 19), b.pick(2, 3, 5)
    b.size("b", 1, 4)
    x = b.feed("x", F32, ("b", rows, width), _rows)
    y = _source(b, x, width)
    centered = b.chance(0.55)
    if "wide" in odd or "narrow" in odd:
        y = b.node("Cast", y, to=F64 if "wide" in odd else F16)
        if b.chance(0.7):
            y = b.node("Cast", y, to=F32)
            odd -= {"wide", "narrow"}
    dtype = "float64" if "wide" in odd else "float16" if "narrow" in odd else "float32"
    axes = b.pick([1, 2], [1], [0], [-2], [0, 2], [0, 1, 2]) if "axes" in odd else b.pick([-1], [2])
    extent = int(np.prod([{1: rows, 2: width}.get(axis % 3, 1) for axis in axes]))
    sums = 0 if 0 in axes or not b.chance(0.3) else extent
    if "unbiased" in odd and 0 not in axes and extent > 1:
        sums = extent - 1

    def number(value: float) -> str:
        return b.constant(np.full(b.pick((), (1,), (1, 1)), value, dtype))

    if "wide" in odd or "narrow" in odd:
        sums = 0
    base = y
    if centered:
        mean = _reduced(b, y, b.pick([1], [0]) if "other mean" in odd else axes, sums=0)
        base = b.node("Sub", *((mean, y) if "negative" in odd else (y, mean)))
    squared = base if "other axes" not in odd or b.chance(0.7) else y
    form = b.pick("pow", "mul", "mul")
    square = b.node("Mul", squared, squared)
    if form == "pow":
        exponent = b.pick(2.0, 2.0, 2.0, 4.0, 3.0) if "power" in odd else 2.0
        square = b.node("Pow", squared, number(exponent))
    keep = "dropped" not in odd
    over = b.pick([1], [0], [1, 2]) if "other axes" in odd else axes
    if "sum" in odd and not sums:
        variance = b.node("ReduceSum", square, b.ints(*over), keepdims=int(keep))
    elif "greatest" in odd:
        variance = b.node("ReduceMax", square, axes=over, keepdims=int(keep))
    else:
        variance = _reduced(b, square, over, keep, sums)
    if not keep:
        variance = b.node("Unsqueeze", variance, b.ints(*sorted(axis % 3 for axis in over)))
    if "variance out" in odd:
        b.result(variance, F64 if dtype == "float64" else F16 if dtype == "float16" else F32)
    if "scaled variance" in odd:
        variance = b.node("Mul", variance, number(0.5))
    epsilon = b.pick(1e-5, 1e-6, 1e-3, 0.1)
    if dtype == "float16":
        epsilon = 0.1
    if "no epsilon" in odd:
        root = b.node("Sqrt", b.node("Add", variance, number(0.0)) if b.chance() else variance)
    elif "epsilon behind" in odd:
        root = b.node("Add", b.node("Sqrt", variance), number(epsilon))
    elif "inverse power" in odd:
        root = b.node("Pow", b.node("Add", variance, number(epsilon)), number(b.pick(0.5, 0.5, 1.0, 0.25)))
    elif "greatest" in odd and b.chance():
        root = b.node("Sqrt", b.node("Max", variance, number(epsilon)))
    else:
        root = b.node(
            "Sqrt",
            b.node("Add", *((variance, number(epsilon)) if b.chance() else (number(epsilon), variance))),
        )
    if "root out" in odd:
        b.result(root, F64 if dtype == "float64" else F16 if dtype == "float16" else F32)
    above = b.node("Tanh", y) if "added base" in odd and b.chance() else y if "added base" in odd else base
    form = b.pick("div", "div", "reciprocal", "one over", "two over")
    if "swapped" in odd:
        out = b.node("Div", root, b.node("Add", b.node("Abs", above), number(1.0)))
    elif form == "div":
        out = b.node("Div", above, root)
    elif form == "reciprocal":
        out = b.node(
            "Mul",
            *((above, b.node("Reciprocal", root)) if b.chance() else (b.node("Reciprocal", root), above)),
        )
    else:
        out = b.node("Mul", above, b.node("Div", number(1.0 if form == "one over" else 2.0), root))
    if dtype != "float32":
        out = b.node("Cast", out, to=F32)
    elif "half" in odd:
        out = b.node("Cast", b.node("Cast", out, to=F16), to=F32)
    out = _affine(b, out, width, 3)
    if b.chance(0.3):
        out = b.node("MatMul", out, b.weight(width, 5))
    b.result(out)


@kind
def near_group_norms(b: Block) -> None:
    """Group and instance norms by reshapes, with constants per channel, place or group."""
    odd = drawn(b, "other back", "transposed", "rows", "activation", "second", "axes", "twice", most=2)
    groups, each = b.pick(1, 2, 3), b.pick(1, 2, 4)
    channels, h, w = groups * each, b.pick(1, 3, 4), b.pick(2, 5)
    b.size("b", 1, 3)
    x = b.feed("x", F32, ("b", channels, h, w), _rows)
    y = b.node("Conv", x, b.weight(channels, channels, 1, 1)) if b.chance(0.4) else x
    if "transposed" in odd:
        y = b.node("Transpose", y, perm=[0, 1, 3, 2])
    how = b.pick("operator", "written", "written", "instance")
    rows = b.reshape(y, 0, groups, -1) if b.chance() else b.reshape(y, b.extent(y, 0), groups, each * h * w)
    if "rows" in odd:
        rows = b.reshape(y, 0, channels, -1)
    count = channels if "rows" in odd else groups
    if how == "operator":
        scale, shift = (b.constant(np.full(count, v, np.float32)) for v in (1, 0))
        if b.chance(0.3):
            scale, shift = b.weight(count), b.weight(count)
        rows = b.node("InstanceNormalization", rows, scale, shift, epsilon=1e-5)
    elif how == "instance":
        rows = b.node("InstanceNormalization", y, b.weight(channels), b.weight(channels), epsilon=1e-3)
    else:
        axes = b.pick([1], [1, 2]) if "axes" in odd else [2]
        base = b.node("Sub", rows, b.node("ReduceMean", rows, axes=axes))
        variance = b.node("ReduceMean", b.node("Mul", base, base), axes=axes)
        rows = b.node("Div", base, b.node("Sqrt", b.node("Add", variance, b.scalar(1e-5))))
        if b.chance(0.3):
            rows = b.node("Mul", rows, b.weight(1, count, 1))
    if "twice" in odd:
        b.result(b.node("ReduceSum", rows, b.ints(0)))
    if "other back" in odd:
        out = b.node("Transpose", b.reshape(rows, -1, h, w, channels), perm=[0, 3, 1, 2])
    else:
        out = (
            b.reshape(rows, 0, channels, h, w) if b.chance() else b.node("Reshape", rows, b.node("Shape", x))
        )
    for op in ("Mul", "Add"):
        shape = b.pick(
            (channels, 1, 1),
            (1, channels, 1, 1),
            (channels, 1, 1),
            (1, 1, 1, w),
            (h, 1),
            (1,),
            (channels, h, w),
        )
        if b.chance(0.8):
            out = b.node(op, out, b.weight(*shape))
    if "second" in odd:
        out = b.node("InstanceNormalization", out, b.weight(channels), b.weight(channels))
    if "activation" in odd:
        other = out if b.chance(0.7) else x
        out = b.node("Mul", out, b.node("Sigmoid", other))
    b.result(out)


def _gate(b: Block, x: str, odd: set[str]) -> tuple[str, str]:
    """An activation of x written out; with what multiplies the gate."""
    form = b.pick(
        "erf", "erf", "tanh", "tanh", "quick", "silu", "silu by hand", "hard", "hard by hand", "mish"
    )
    if form == "erf":
        root = b.pick(1.41, 1.4142135, 1.5, 2.0, -math.sqrt(2)) if "number" in odd else math.sqrt(2)
        inner = b.node("Div", x, b.scalar(root)) if b.chance() else b.node("Mul", x, b.scalar(1 / root))
        one = b.pick(1.0, 0.99, 2.0, -1.0) if "one" in odd else 1.0
        value = b.node("Erf", inner)
        if "minus" in odd:
            return b.node("Sub", b.scalar(one), value), "half"
        return b.node("Add", value, b.scalar(one)), "half"
    if form == "tanh":
        cubic = b.pick(0.0447, 0.04, 0.044715, -0.044715) if "number" in odd else 0.044715
        slope = b.pick(0.79, 0.7978845608, 1.0) if "slope" in odd else math.sqrt(2 / math.pi)
        how = b.pick("pow", "mul", "square", "factored")
        if how == "pow":
            cube = b.node("Pow", x, b.scalar(b.pick(3.0, 2.0) if "power" in odd else 3.0))
            inner = b.node("Add", x, b.node("Mul", b.scalar(cubic), cube))
        elif how == "mul":
            cube = b.node("Mul", x, b.node("Mul", x, x))
            inner = b.node("Add", b.node("Mul", cube, b.scalar(cubic)), x)
        elif how == "square":
            square = b.node("Mul", x, x)
            inner = b.node("Mul", x, b.node("Add", b.scalar(1.0), b.node("Mul", square, b.scalar(cubic))))
        else:
            inner = b.node("Add", x, b.node("Mul", b.node("Mul", b.node("Mul", x, b.scalar(cubic)), x), x))
        value = b.node("Tanh", b.node("Mul", inner, b.scalar(slope)))
        return b.node("Add", value, b.scalar(b.pick(1.0, 0.9) if "one" in odd else 1.0)), "half"
    if form in ("quick", "silu"):
        slope = (b.pick(1.7, 1.702, -1.0, 0.0) if "number" in odd else 1.702) if form == "quick" else 1.0
        inner = x if form == "silu" else b.node("Mul", x, b.scalar(slope))
        return b.node("Sigmoid", inner), ""
    if form == "silu by hand":
        power = b.node("Exp", x if "minus" in odd else b.node("Neg", x))
        under = b.node("Add", power, b.scalar(b.pick(1.0, 1.1) if "one" in odd else 1.0))
        return b.node("Div", b.scalar(b.pick(1.0, 2.0) if "number" in odd else 1.0), under), ""
    if form == "hard":
        alpha = b.pick(0.2, 1 / 6, 0.1666) if "number" in odd else 1 / 6
        return b.node("HardSigmoid", x, alpha=alpha, beta=b.pick(0.5, 0.4) if "one" in odd else 0.5), ""
    if form == "hard by hand":
        inner = b.node("Add", x, b.scalar(b.pick(2.0, 3.0) if "one" in odd else 3.0))
        high = b.scalar(b.pick(5.0, 6.0) if "power" in odd else 6.0)
        clipped = b.node("Clip", inner, b.scalar(b.pick(-1.0, 0.0) if "slope" in odd else 0.0), high)
        return b.node("Div", clipped, b.scalar(b.pick(5.0, 6.0) if "number" in odd else 6.0)), ""
    soft = b.node("Softplus", x)
    if b.chance():
        soft = b.node(
            "Log", b.node("Add", b.node("Exp", x), b.scalar(b.pick(1.0, 2.0) if "one" in odd else 1.0))
        )
    return b.node("Tanh", soft), ""


@kind
def near_activations(b: Block) -> None:
    """GELU, SiLU, hard swish and Mish in all their spellings, and with other numbers or operands."""
    odd = drawn(
        b, "number", "one", "slope", "power", "minus", "half", "other x", "gate out", "gate twice",
        "scaled x", "broadcast", "up", "cast", most=2,
    )  # fmt: skip
    width = b.pick(1, 5, 8, 16)
    image = b.chance(0.3)
    b.size("b", 1, 7)

    def wide(rng, shape, sizes):
        return rng.standard_normal(shape) * 4

    if image:
        x = b.feed("x", F32, ("b", width, 3, 4), wide)
        y = b.node("Conv", x, b.weight(width, width, 1, 1), b.weight(width)) if b.chance(0.6) else x
    else:
        x = b.feed("x", F32, ("b", 3, width), wide)
        y = x
        if b.chance(0.6):
            y = b.node("MatMul", x, b.weight(width, width))
            y = b.node("Add", y, b.weight(width)) if b.chance(0.7) else y
    if "broadcast" in odd:
        y = b.node("Slice", y, b.ints(0), b.ints(1), b.ints(2))
    gated = y
    if "scaled x" in odd:
        gated = b.node("Mul", y, b.scalar(b.pick(0.5, 2.0, -1.0)))
    if "cast" in odd:
        gated = b.node("Cast", b.node("Cast", gated, to=F16), to=F32)
    gate, needs = _gate(b, gated, odd)
    if "gate out" in odd:
        b.result(gate)
    if "gate twice" in odd:
        b.result(b.node("Exp", b.node("Neg", gate)))
    other = y
    if "other x" in odd:
        other = b.pick(b.node("Relu", y), x, b.node("Neg", y), gate)
    half = b.scalar(b.pick(0.25, -0.5, 1.0) if "half" in odd else 0.5)
    order = b.pick(0, 1, 2, 3)
    if not needs:
        out = b.node("Mul", *((other, gate) if b.chance() else (gate, other)))
    elif order == 0:
        out = b.node("Mul", b.node("Mul", other, gate), half)
    elif order == 1:
        out = b.node("Mul", other, b.node("Mul", gate, half))
    elif order == 2:
        out = b.node("Mul", b.node("Mul", half, other), gate)
    else:
        out = b.node("Div", b.node("Mul", gate, other), b.scalar(2.0))
    if "up" in odd:
        up = x if image else b.node("MatMul", x, b.weight(width, width))
        out = b.node("Mul", out, up)
    if b.chance(0.3) and not image and "broadcast" not in odd:
        out = b.node("MatMul", out, b.weight(width, 6))
    b.result(out)
