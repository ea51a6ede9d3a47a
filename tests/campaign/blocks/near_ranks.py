"""Patterns whose constants and operands have more axes than what they meet: results have them too."""

from __future__ import annotations

import math

import numpy as np

from tests.campaign.blocks.block import F32, Block, kind


def _wide(b: Block, array: np.ndarray, rank: int, share: float = 0.5) -> str:
    """A constant that broadcasts against ``rank`` axes, or has some more in front of them."""
    array = np.asarray(array, np.float32)
    if b.chance(share):
        axes = rank + b.pick(1, 1, 2)
        array = array.reshape((1,) * (axes - array.ndim) + array.shape)
    return b.constant(array)


def _ranked(b: Block, x: str, rank: int, width: int) -> str:
    """One step, whose constants may have axes of their own."""
    form = b.pick(
        "bias", "scale", "gelu", "tanh", "silu", "hard", "rms", "layer", "residual", "product", "softmax",
        "clip",
        "softcap",
    )  # fmt: skip

    def number(value: float) -> str:
        return _wide(b, np.float32(value), rank, 0.35)

    if form in ("bias", "scale"):
        return b.node("Add" if form == "bias" else "Mul", x, _wide(b, b.rng.standard_normal(width), rank))
    if form == "gelu":
        erf = b.node("Erf", b.node("Div", x, number(math.sqrt(2))))
        return b.node("Mul", b.node("Mul", x, b.node("Add", erf, number(1.0))), number(0.5))
    if form == "tanh":
        cube = b.node("Mul", b.node("Pow", x, number(3.0)), number(0.044715))
        gate = b.node("Tanh", b.node("Mul", b.node("Add", x, cube), number(math.sqrt(2 / math.pi))))
        return b.node("Mul", b.node("Mul", number(0.5), x), b.node("Add", number(1.0), gate))
    if form == "silu":
        return b.node("Mul", x, b.node("Sigmoid", b.node("Mul", x, number(b.pick(1.0, 1.702)))))
    if form == "hard":
        six = b.node("Clip", b.node("Add", x, number(3.0)), b.scalar(0.0), b.scalar(6.0))
        return b.node("Div", b.node("Mul", x, six), number(6.0))
    if form in ("rms", "layer"):
        base = x if form == "rms" else b.node("Sub", x, b.node("ReduceMean", x, axes=[-1]))
        mean = b.node("ReduceMean", b.node("Pow", base, number(2.0)), axes=[-1])
        y = b.node("Div", base, b.node("Sqrt", b.node("Add", mean, number(1e-5))))
        return b.node("Mul", y, _wide(b, b.rng.standard_normal(width), rank))
    if form == "residual":
        return b.node("Add", x, b.node("Unsqueeze", b.node("Tanh", x), b.ints(0)))
    if form == "product":
        weight = b.rng.standard_normal((width, width)) * 0.3
        y = b.node("MatMul", x, _wide(b, weight, rank, 0.3))
        return b.node("Add", y, _wide(b, b.rng.standard_normal(width), rank)) if b.chance(0.7) else y
    if form == "softmax":
        y = b.node("Softmax", b.node("Mul", x, number(0.5)), axis=-1)
        return b.node("Mul", y, number(3.0))
    if form == "clip":
        return b.node("Min", b.node("Max", x, number(-1.0)), number(1.0))
    return b.node("Mul", b.node("Tanh", b.node("Div", x, number(5.0))), number(5.0))


@kind
def near_ranks(b: Block) -> None:
    """Rows through steps whose constants have more axes."""
    width = b.pick(1, 4, 8, 16)
    b.size("s", 1, 7)
    lead = b.pick((), (2,), (2, 3))
    x = b.feed("x", F32, (*lead, "s", width))
    y = b.node("MatMul", x, b.weight(width, width)) if b.chance() else x
    for _ in range(b.pick(1, 2, 3)):
        y = _ranked(b, y, len(lead) + 2, width)
    b.result(y)


@kind
def near_ranks_of_images(b: Block) -> None:
    """Convolutions and attention whose constants have more axes."""
    b.size("b", 1, 3)
    if b.chance(0.5):
        channels = b.pick(1, 4, 8)
        x = b.feed("x", F32, ("b", channels, 4, 5))
        y = b.node("Conv", x, b.weight(channels, channels, 1, 1))
        for op in b.pick(("Add",), ("Mul", "Add"), ("Add", "Mul", "Add")):
            y = b.node(op, y, _wide(b, b.rng.standard_normal((channels, 1, 1)), 4))
        y = b.node("Mul", y, b.node("Sigmoid", y)) if b.chance() else b.node("Relu", y)
        if b.chance():
            y = b.node("Add", y, b.node("Unsqueeze", x, b.ints(0)) if b.chance() else x)
        b.result(y)
        return
    heads, depth, rows = b.pick(1, 2), 4, b.pick(1, 3, 5)
    q, k, v = (b.feed(name, F32, ("b", heads, rows, depth)) for name in "qkv")
    scores = b.node("MatMul", q, b.node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = b.node("Mul", scores, _wide(b, np.float32(0.5), 4, 0.3))
    mask = np.where(b.rng.random((rows, rows)) < 0.3, b.pick(-1e9, -1.0), 0.0)
    mask[:, 0] = 0
    if b.chance(0.7):
        scores = b.node("Add", scores, _wide(b, mask, 4))
    if b.chance(0.4):
        lead = b.pick((1, "b", 1), (1, 1, 1), (2, 1, 1))
        scores = b.node("Add", scores, b.feed("mask", F32, (*lead, rows, rows)))
    if b.chance(0.2):
        v = b.node("Unsqueeze", v, b.ints(0))
    out = b.node("MatMul", b.node("Softmax", scores, axis=-1), v)
    b.result(b.node("Mul", out, _wide(b, np.float32(2.0), 4, 0.3)))
