"""Rotary embeddings with something that their fusion must see: signs, orders, tables, pairs, readers."""

from __future__ import annotations

import numpy as np

from tests.campaign.blocks.block import F32, I64, Block, below, kind
from tests.campaign.blocks.near_attention import drawn

_END = 1 << 62


def _cut(b: Block, x: str, begin: int, end: int, step: int = 1) -> str:
    return b.node("Slice", x, b.ints(begin), b.ints(end), b.ints(-1), b.ints(step))


def _tables(b: Block, width: int, lead: tuple[int | str, ...], odd: set[str]) -> tuple[str, str]:
    """Cosines and sines whose last axis has ``width`` places."""
    half = width // 2
    form = b.pick("positions", "constant", "inputs", "gathered")
    if form == "inputs":
        other = (1, 1, "s", width) if "shapes differ" in odd else (*lead, "s", width)
        return b.feed("cos", F32, (*lead, "s", width)), b.feed("sin", F32, other)
    frequencies = 1.0 / 100 ** (np.arange(0, width, 2) / width)
    if form in ("constant", "gathered"):
        angles = np.arange(12)[:, None] * frequencies
        both = np.concatenate([angles, angles], -1).astype(np.float32)
        if "halves differ" in odd:
            both[:, half:] *= 1.3
        found = []
        for name, array in (("Cos", np.cos(both)), ("Sin", np.sin(both))):
            table = b.constant(array.astype(np.float32))
            if form == "gathered":
                name = "position" if not found or "other positions" not in odd else "position2"
                if name not in b.shapes:
                    b.feed(name, I64, ("b", "s"), below(12))
                table = b.node("Unsqueeze", b.node("Gather", table, name), b.ints(1))
            else:
                table = b.node("Slice", table, b.ints(0), b.extent("x", 2), b.ints(0))
            found.append(table)
        return found[0], found[1]
    position = b.feed("position", I64, ("b", "s"), below(40))
    at = b.node("Unsqueeze", b.node("Cast", position, to=F32), b.ints(2))
    angle = b.node("Mul", at, b.constant(frequencies.astype(np.float32)))
    other = b.node("Mul", angle, b.scalar(1.3)) if "halves differ" in odd else angle
    angle = b.node("Concat", angle, other, axis=-1)
    if "factor" in odd:
        return tuple(
            b.node("Unsqueeze", b.node("Mul", b.node(op, angle), b.scalar(1.2)), b.ints(1))
            for op in ("Cos", "Sin")
        )
    return tuple(b.node("Unsqueeze", b.node(op, angle), b.ints(1)) for op in ("Cos", "Sin"))


def _turned(b: Block, x: str, width: int, odd: set[str]) -> str:
    """The other elements of the pairs, half a head apart."""
    half = width // 2
    cut = half + 1 if "uneven" in odd and half > 1 else half
    if b.chance(0.4):
        out = b.node("Split", x, b.ints(cut, width - cut), axis=-1, results=2)
        first, second = out, f"{out}_1"
    else:
        first, second = _cut(b, x, 0, cut), _cut(b, x, cut, _END)
    if "no sign" in odd:
        parts = (second, first)
    elif "other sign" in odd:
        parts = (second, b.node("Neg", first))
    elif "both signs" in odd:
        parts = (b.node("Neg", second), b.node("Neg", first))
    elif "not turned" in odd:
        parts = (b.node("Neg", first), second)
    elif "minus two" in odd:
        parts = (b.node("Mul", second, b.scalar(-2.0)), first)
    else:
        minus = b.node("Neg", second) if b.chance(0.7) else b.node("Mul", second, b.scalar(-1.0))
        parts = (minus, first)
    return b.node("Concat", *parts, axis=-1)


def _halves(b: Block, x: str, cos: str, sin: str, width: int, odd: set[str]) -> str:
    other = b.node("Tanh", x) if "other x" in odd else x
    turned = _turned(b, other, width, odd)
    if "turned out" in odd:
        b.result(turned)
    one, two = (sin, cos) if "swapped" in odd else (cos, sin)
    parts = b.node("Mul", x, one), b.node("Mul", turned, two)
    if "subtracted" in odd:
        return b.node("Sub", *parts)
    return b.node("Add", *(parts if b.chance() else parts[::-1]))


def _pairs(b: Block, x: str, cos: str, sin: str, width: int, odd: set[str]) -> str:
    """ONNX's definition, with pairs half a head apart or side by side."""
    half = width // 2
    side = b.chance()
    first, second = (
        (_cut(b, x, 0, _END, 2), _cut(b, x, 1, _END, 2))
        if side
        else (_cut(b, x, 0, half), _cut(b, x, half, _END))
    )
    cos, sin = _cut(b, cos, 0, half), _cut(b, sin, 0, half)
    if "swapped" in odd:
        cos, sin = sin, cos
    one = b.node("Add" if "no sign" in odd else "Sub", b.node("Mul", first, cos), b.node("Mul", second, sin))
    two = b.node(
        "Sub" if "other sign" in odd else "Add", b.node("Mul", second, cos), b.node("Mul", first, sin)
    )
    if "not turned" in odd:
        one, two = two, one
    if "both signs" in odd:
        two = b.node("Neg", two)
    if "other x" in odd:
        two = b.node("Add", b.node("Mul", b.node("Tanh", second), cos), b.node("Mul", first, sin))
    if not side or "uneven" in odd:
        return b.node("Concat", one, two, axis=-1)
    joined = b.node("Concat", *(b.node("Unsqueeze", t, b.ints(4)) for t in (one, two)), axis=4)
    return b.node("Reshape", joined, b.node("Shape", x))


@kind
def near_rotary(b: Block) -> None:
    """Rotated queries, keys or anything, with up to two deviations."""
    odd = drawn(
        b, "no sign", "other sign", "both signs", "not turned", "minus two", "swapped", "subtracted",
        "uneven",
        "other x", "turned out", "halves differ", "other positions", "factor", "shapes differ", "rest first",
        "rest of another", "part", "read twice", most=2,
    )  # fmt: skip
    heads, depth = b.pick(1, 2, 3), b.pick(2, 4, 8, 16)
    b.size("b", 1, 3)
    b.size("s", 1, 9)
    rows = b.chance(0.4)
    if rows:
        raw = b.feed("raw", F32, ("b", "s", heads * depth))
        if b.chance():
            raw = b.node("MatMul", raw, b.weight(heads * depth, heads * depth))
        x = b.node("Transpose", b.reshape(raw, 0, 0, heads, depth), perm=[0, 2, 1, 3], out="x")
    else:
        x = b.feed("x", F32, ("b", heads, "s", depth))
    part = "part" in odd or "rest of another" in odd or "rest first" in odd
    width = depth // 2 if part and depth >= 4 else depth
    whole = x
    rest = None
    if width != depth:
        if "rest first" in odd:
            x, rest = _cut(b, whole, depth - width, _END), _cut(b, whole, 0, depth - width)
        else:
            x, rest = _cut(b, whole, 0, width), _cut(b, whole, width, _END)
        if "rest of another" in odd:
            rest = b.node("Relu", rest)
    cos, sin = _tables(b, width, ("b", b.pick(1, heads)), odd)
    out = (_halves if b.chance(0.6) else _pairs)(b, x, cos, sin, width, odd)
    if rest:
        out = b.node("Concat", *((rest, out) if "rest first" in odd else (out, rest)), axis=-1)
    if "read twice" in odd:
        b.result(b.node("Neg", out))
    if b.chance(0.3):
        keys = b.node("Transpose", b.pick(out, out, whole), perm=[0, 1, 3, 2])
        weights = b.node("Softmax", b.node("MatMul", out, keys), axis=-1)
        out = b.node("MatMul", weights, whole)
    b.result(out)
