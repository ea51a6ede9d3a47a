"""Tensors with several roles: results that are inputs, weights or parts of chains, weights read in two ways,
two results in one memory, one tensor as several operands."""

from __future__ import annotations

import numpy as np

from tests.campaign.blocks.block import F32, I64, Block, below, kind
from tests.campaign.blocks.near_attention import drawn


def _step(b: Block, x: str, square: str, width: int) -> str:
    """One more tensor of the shape (b, width), by a weight that others read in other ways."""
    form = b.pick(
        "product", "turned", "gemm", "row", "table", "chain", "norm", "softmax", "self", "halves", "copy"
    )
    if form == "product":
        return b.node("MatMul", x, square)
    if form == "turned":
        return b.node("MatMul", x, b.node("Transpose", square, perm=[1, 0]))
    if form == "gemm":
        return b.node("Gemm", x, square, transB=b.pick(0, 1), alpha=b.pick(1.0, 0.5))
    if form == "row":
        return b.node(
            "Add", x, b.node("Gather", square, b.constant(np.int64(b.rng.integers(0, width))), axis=0)
        )
    if form == "table":
        if "ids" not in b.shapes:
            b.feed("ids", I64, ("b",), below(width))
        return b.node("Add", x, b.node("Gather", square, "ids", axis=0))
    if form == "chain":
        return b.node("Mul", b.node("Tanh", x), b.scalar(1.5))
    if form == "norm":
        return b.node("LayerNormalization", x, b.node("ReduceMean", square, axes=[0], keepdims=0), axis=-1)
    if form == "softmax":
        return b.node("Softmax", x, axis=-1)
    if form == "self":
        return b.node(b.pick("Add", "Mul", "Sub", "Max"), x, x)
    if form == "halves":
        first = b.node("Slice", x, b.ints(0), b.ints(width // 2), b.ints(1))
        second = b.node("Slice", x, b.ints(width // 2), b.ints(width), b.ints(1))
        return b.node(
            "Concat", *b.pick((first, second), (second, first), (second, second), (first, first)), axis=1
        )
    return b.node("Identity", x)


@kind
def roles(b: Block) -> None:
    """A square weight that all read, a few tensors, and results of every sort."""
    odd = drawn(
        b, "input out", "input out twice", "weight out", "weight changed", "view of input", "view out",
        "same twice",
        "copy out", "constant out", "middle out", "shapes of one", most=5,
    )  # fmt: skip
    width = b.pick(4, 8, 16, 32)
    b.size("b", 1, 6, 0.4)
    x = b.feed("x", F32, ("b", width))
    square = b.weight(width, width)
    made = [x]
    if b.chance(0.4):
        made.append(b.feed("y", F32, ("b", width)))
    for _ in range(b.pick(2, 3, 5, 7)):
        one = b.pick(*made[-3:])
        if len(made) > 2 and b.chance(0.35):
            made.append(b.node(b.pick("Add", "Mul", "Sub"), one, b.pick(*made)))
        else:
            made.append(_step(b, one, square, width))
    results = [made[-1]]
    if "middle out" in odd or b.chance(0.3):
        results += [t for t in made[1:-1] if b.chance(0.4)]
    if "weight changed" in odd:
        results.append(b.node("Mul", square, b.scalar(2.0)))
    if "view of input" in odd:
        results.append(b.reshape("x", -1))
        results.append(b.node("Slice", "x", b.ints(0), b.ints(1), b.ints(0)))
    if "view out" in odd:
        results += [b.reshape(made[-1], -1), b.node("Unsqueeze", made[-1], b.ints(0))]
    if "shapes of one" in odd:
        results += [b.node("Transpose", made[-1], perm=[1, 0]), b.node("Flatten", made[-1], axis=0)]
    if "copy out" in odd:
        results.append(b.node("Identity", made[-1]))
    if "constant out" in odd:
        results.append(b.node("Tanh", b.weight(3)))
    known: set[str] = set()
    for name in results:
        if name not in known and name not in b.shapes:
            known.add(name)
            b.result(name)
    if "same twice" in odd and made[-1] not in b.shapes:
        b.result(b.node("Identity", made[-1]))
        b.result(b.node("Identity", made[-1]))
    if "input out" in odd:
        b.result("x")
    if "input out twice" in odd:
        b.result(b.node("Identity", "x"))
        b.result(b.node("Identity", "x"))
    if "weight out" in odd:
        b.result(square)


@kind
def image_roles(b: Block) -> None:
    """A kernel of convolutions that another convolution, a transposed one and a product read as well."""
    odd = drawn(
        b, "kernel out", "input out", "middle out", "as product", "transposed", "other strides", "grouped"
    )
    channels = b.pick(2, 4, 8, 16)
    b.size("b", 1, 3, 0.4)
    b.size("h", 3, 9, 0.5)
    x = b.feed("x", F32, ("b", channels, "h", 6))
    kernel = b.weight(channels, channels, 3, 3)
    y = b.node("Conv", x, kernel, pads=[1] * 4)
    z = b.node("Conv", b.node("Relu", y), kernel, b.weight(channels), pads=[1] * 4)
    z = b.node("Add", z, b.pick(x, y, z))
    if "middle out" in odd:
        b.result(y)
    if "transposed" in odd:
        z = b.node("ConvTranspose", z, kernel, pads=[1] * 4)
    if "other strides" in odd:
        b.result(b.node("Conv", x, kernel, strides=[2, 2], pads=[1] * 4))
    if "grouped" in odd:
        part = b.node("Slice", kernel, b.ints(0), b.ints(1), b.ints(1))
        z = b.node("Conv", z, part, pads=[1] * 4, group=channels)
    if "as product" in odd:
        flat = b.reshape(kernel, channels, channels * 9)
        b.result(b.node("MatMul", b.node("ReduceMean", z, axes=[2, 3], keepdims=0), flat))
    if "kernel out" in odd:
        b.result(kernel)
    if "input out" in odd:
        b.result("x")
    b.result(b.node("Relu", z))
