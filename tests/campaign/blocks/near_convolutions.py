"""Convolutions whose neighbours are not what an epilogue expects: shared, broadcast, joined to themselves."""

from __future__ import annotations

import numpy as np

from tests.campaign.blocks.block import F32, Block, kind
from tests.campaign.blocks.convolution import activation
from tests.campaign.blocks.near_attention import drawn


def _batch(b: Block, x: str, channels: int, odd: set[str]) -> str:
    spread = b.constant(b.rng.uniform(0.5, 1.5, channels).astype(np.float32))
    parts = [b.weight(channels) for _ in range(3)]
    if "batch by hand" in odd:
        ones = b.pick((channels, 1, 1), (1, channels, 1, 1))
        y = b.node("Sub", x, b.weight(*ones))
        y = b.node(b.pick("Mul", "Div"), y, b.constant(b.rng.uniform(0.5, 1.5, ones).astype(np.float32)))
        return b.node("Add", y, b.weight(*ones))
    return b.node("BatchNormalization", x, *parts, spread, epsilon=b.pick(1e-5, 1e-3))


def _residual(b: Block, y: str, x: str, channels: int, h: int, w: int, odd: set[str]) -> str:
    form = b.pick(
        "x", "x", "x", "itself", "pooled", "row", "column", "one", "batch", "twice", "other", "scaled"
    )
    other = x
    if form == "itself":
        other = y
    elif form == "pooled":
        other = b.node("GlobalAveragePool", x)
    elif form == "row":
        other = b.weight(1, channels, 1, w)
    elif form == "column":
        other = b.weight(h, 1)
    elif form == "one":
        other = b.feed(f"one{len(b.nodes)}", F32, (1,))
    elif form == "batch":
        other = b.feed(f"more{len(b.nodes)}", F32, (1, channels, h, w))
    elif form == "twice":
        y = b.node("Add", y, x)
    elif form == "other":
        other = b.node("Tanh", x)
    elif form == "scaled":
        other = b.node("Mul", x, b.weight(channels, 1, 1))
    op = b.pick("Add", "Add", "Add", "Sub", "Mul", "Max")
    return b.node(op, *((y, other) if b.chance() else (other, y)))


@kind
def near_convolutions(b: Block) -> None:
    """Convolution, norm, activation and residual in any order, with up to three deviations."""
    odd = drawn(
        b, "weights shared", "result out", "norm out", "read twice", "batch by hand", "joined itself",
        "activation first", "norm twice", "norm first", "pad before", "input out", "bias image",
        "kernel given",
        "split", "transposed", "scale before", "pool", most=3,
    )  # fmt: skip
    channels, h, w = b.pick(1, 3, 8, 16, 20), b.pick(1, 5, 8), b.pick(1, 7, 8)
    b.size("b", 1, 3)
    x = b.feed("x", F32, ("b", channels, h, w))
    if "input out" in odd:
        b.result(x)
    group = b.pick(1, 1, channels)
    size = b.pick(1, 3)
    shared = b.weight(channels, channels // group, size, size)
    if "kernel given" in odd:
        shared = b.feed("kernel", F32, (channels, channels // group, size, size))
    for layer in range(b.pick(1, 2, 3)):
        before = x
        weight = (
            shared
            if layer == 0 or "weights shared" in odd
            else b.weight(channels, channels // group, size, size)
        )
        pads = [size // 2] * 4
        y = x
        if "scale before" in odd:
            y = b.node("Mul", y, b.weight(channels, 1, 1))
        if "norm first" in odd:
            y = _batch(b, y, channels, odd)
            y = b.node("Relu", y) if b.chance() else y
        if "activation first" in odd:
            y = activation(b, y, channels)
        if "pad before" in odd and size == 3:
            mode = b.pick("constant", "reflect" if min(h, w) > 1 else "edge", "edge")
            value = (b.scalar(b.pick(0.0, 1.0)),) if mode == "constant" else ()
            y = b.node("Pad", y, b.ints(0, 0, 1, 1, 0, 0, 1, 1), *value, mode=mode)
            pads = [0] * 4
        bias = (b.weight(channels),) if b.chance() else ()
        if "transposed" in odd and group == 1 and size == 3:
            y = b.node("ConvTranspose", y, weight, *bias, pads=pads, kernel_shape=[3, 3])
            if pads == [0] * 4:
                y = b.node("Slice", y, b.ints(2, 2), b.ints(-2, -2), b.ints(2, 3))
        else:
            y = b.node("Conv", y, weight, *bias, group=group, pads=pads)
        if "result out" in odd:
            b.result(y)
        if "bias image" in odd:
            y = b.node(
                "Add", y, b.weight(*b.pick((h, w), (channels, h, w), (1, 1, h, 1), (1, channels, 1, 1), (w,)))
            )
        if b.chance(0.6):
            y = _batch(b, y, channels, odd)
            if "norm twice" in odd:
                y = _batch(b, y, channels, odd)
            if "norm out" in odd:
                b.result(y)
        if "read twice" in odd:
            b.result(b.node("ReduceMax", y, axes=[2, 3]))
        early = b.chance(0.3)
        if early:
            y = activation(b, y, channels)
        if "joined itself" in odd:
            y = b.node("Concat", y, b.pick(y, before), axis=b.pick(0, 1, 2, 3))
            b.result(activation(b, y, b.pick(1, 1)) if b.chance() and channels == 1 else y)
            y = before
        if "split" in odd and channels > 1:
            out = b.node("Split", y, b.ints(1, channels - 1), axis=1, results=2)
            y = b.node("Concat", b.node("Relu", f"{out}_1"), out, axis=1)
        if b.chance(0.7):
            y = _residual(b, y, before, channels, h, w, odd)
        if not early:
            y = activation(b, y, channels)
        if "pool" in odd:
            y = b.node(b.pick("MaxPool", "AveragePool"), y, kernel_shape=[3, 3], pads=[1] * 4)
        x = y
    b.result(x)
