"""Chains of quantisers with something that their fusion must see: scales, axes, types, readers, bounds."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.campaign.blocks.block import F32, I8, I32, U8, Block, kind
from tests.campaign.blocks.near_attention import drawn


def _point(b: Block, signed: bool, shape: tuple[int, ...] = (), flat: bool = False) -> tuple[str, str]:
    scale = b.constant(b.rng.uniform(0.008, 0.06, shape).astype(np.float32))
    zero = np.zeros(shape) if flat else b.rng.integers(*((-25, 26) if signed else (90, 160)), shape)
    return scale, b.constant(np.asarray(zero).astype(np.int8 if signed else np.uint8))


def _between(b: Block, x: str, channels: int, rank: int, odd: set[str]) -> str:
    """A value through a quantiser, which may be another on the way back."""
    signed = b.chance()
    axis = 1 if rank == 4 else rank - 1
    shape = (channels,) if "per channel" in odd and b.chance() else ()
    extra = {"axis": axis} if shape else {}
    point = _point(b, signed, shape)
    q = b.node("QuantizeLinear", x, *point, **extra)
    if "bytes out" in odd and b.chance():
        b.result(q, I8 if signed else U8)
    if "clip bytes" in odd and b.chance():
        dtype = np.int8 if signed else np.uint8
        low, high = (-30, 60) if signed else (70, 200)
        q = b.node("Clip", q, b.constant(np.array(low, dtype)), b.constant(np.array(high, dtype)))
    if "moved bytes" in odd and b.chance() and rank == 4:
        form = b.pick("pool", "transpose", "pad", "slice")
        if form == "pool":
            q = b.node("MaxPool", q, kernel_shape=[3, 3], pads=[1] * 4)
        elif form == "transpose":
            q = b.node("Transpose", b.node("Transpose", q, perm=[0, 1, 3, 2]), perm=[0, 1, 3, 2])
        elif form == "pad":  # of zeros, which are no zeros
            q = b.node("Pad", q, b.ints(0, 0, 1, 0, 0, 0, 0, 0))
            q = b.node("Slice", q, b.ints(0), b.ints(-1), b.ints(2))
        else:
            q = b.node("Concat", q, b.node("Slice", q, b.ints(0), b.ints(1), b.ints(2)), axis=2)
            q = b.node("Slice", q, b.ints(1), b.ints(1 << 62), b.ints(2))
    back = point
    if "other scale" in odd and b.chance():
        back = _point(b, signed, shape)
    if "no zero" in odd and b.chance():
        back = (back[0],) if not shape else back
    y = b.node("DequantizeLinear", q, *back, **extra)
    if "read twice" in odd and b.chance():
        b.result(b.node("Tanh", y))
    if "back twice" in odd and b.chance():
        z = b.node("DequantizeLinear", q, *_point(b, signed))
        y = b.node("Add", y, z)
    if "twice quantised" in odd and b.chance():
        other = _point(b, not signed)
        y = b.node("DequantizeLinear", b.node("QuantizeLinear", y, *other), *other)
    return y


def _weight(b: Block, shape: tuple[int, ...], axis: int, odd: set[str]) -> str:
    signed = "unsigned weight" not in odd
    values = b.rng.integers(*((-127, 128) if signed else (0, 256)), shape)
    if "small weight" in odd:
        values = values // 40 + (0 if signed else 120)
    array = b.constant(values.astype(np.int8 if signed else np.uint8))
    if "wrong axis" in odd:
        axis = int(b.rng.integers(0, len(shape)))
    per = b.chance(0.6) or "wrong axis" in odd
    scale, zero = _point(b, signed, (shape[axis],) if per else (), flat="weight zero" not in odd)
    args = (array, scale) if "no zero" in odd and signed else (array, scale, zero)
    y = b.node("DequantizeLinear", *args, **({"axis": axis} if per else {}))
    if "weight moved" in odd:
        perm = [1, 0, *range(2, len(shape))]
        return b.node("Transpose", b.node("Transpose", y, perm=perm), perm=perm)
    if "weight scaled" in odd:
        return b.node(
            "Mul",
            y,
            b.pick(b.scalar(0.5), b.weight(*[s if n == b.pick(axis, 0) else 1 for n, s in enumerate(shape)])),
        )
    return y


ODD = (
    "per channel", "bytes out", "clip bytes", "moved bytes", "other scale", "no zero", "read twice",
    "back twice",
    "twice quantised", "unsigned weight", "small weight", "wrong axis", "weight zero", "weight moved",
    "weight scaled", "weights shared", "clip floats", "bias integers", "no last", "residual itself",
    "float between",
)  # fmt: skip


def _bias(b: Block, count: int, odd: set[str]) -> str:
    if "bias integers" in odd:
        values = b.constant(b.rng.integers(-4000, 4000, count).astype(np.int32))
        scale = b.constant(b.rng.uniform(1e-4, 1e-3, count if b.chance() else ()).astype(np.float32))
        return b.node("DequantizeLinear", values, scale, axis=0)
    return b.weight(count)


def _behind(b: Block, y: str, odd: set[str]) -> str:
    form = b.pick("", "Relu", "clip", "Sigmoid", "LeakyRelu", "HardSwish")
    if form == "clip" or "clip floats" in odd:
        return b.node("Clip", y, b.scalar(b.pick(0.0, -0.5)), b.scalar(b.pick(6.0, 0.7)))
    return b.node(form, y) if form else y


@kind
def near_quantised_images(b: Block) -> None:
    """Quantised convolutions, with up to three deviations."""
    odd = drawn(b, *ODD, most=3)
    channels, h, w = b.pick(1, 3, 8, 16), b.pick(1, 5, 8), b.pick(3, 8)
    b.size("b", 1, 3)
    x = _between(b, b.feed("x", F32, ("b", channels, h, w)), channels, 4, odd)
    shared = None
    for _ in range(b.pick(1, 2, 3)):
        group, size = b.pick(1, 1, channels), b.pick(1, 3)
        if shared is None or "weights shared" not in odd:
            shared = (_weight(b, (channels, channels // group, size, size), 0, odd), group, size)
        weight, group, size = shared
        args = [x, weight, *([_bias(b, channels, odd)] if b.chance(0.7) else [])]
        y = b.node("Conv", *args, group=group, pads=[size // 2] * 4)
        y = _behind(b, y, odd)
        if not ("float between" in odd and b.chance()):
            y = _between(b, y, channels, 4, odd)
        if b.chance(0.4):
            other = y if "residual itself" in odd else x
            y = b.node(b.pick("Add", "Add", "Mul"), y, other)
            y = _between(b, b.node("Relu", y) if b.chance(0.4) else y, channels, 4, odd)
        x = y
    if b.chance(0.3):
        x = b.node("GlobalAveragePool", x)
        x = x if "no last" in odd else _between(b, x, channels, 4, odd)
    b.result(x)


@kind
def near_quantised_rows(b: Block) -> None:
    """Quantised products, with up to three deviations."""
    odd = drawn(b, *ODD, most=3)
    width = b.pick(1, 5, 16, 32)
    b.size("s", 1, 9)
    rank = b.pick(2, 3)
    x = _between(b, b.feed("x", F32, (*((2,) if rank == 3 else ()), "s", width)), width, rank, odd)
    shared = None
    for _ in range(b.pick(1, 2)):
        outside = width if "weights shared" in odd else b.pick(width, 7, 16)
        gemm = rank == 2 and b.chance(0.4)
        if shared is None or "weights shared" not in odd:
            shared = _weight(b, (outside, width) if gemm else (width, outside), 0 if gemm else 1, odd), gemm
        weight, gemm = shared
        if gemm:
            y = b.node("Gemm", x, weight, _bias(b, outside, odd), transB=1, alpha=b.pick(1.0, 1.0, 0.5))
        else:
            y = b.node("MatMul", x, weight)
            y = b.node("Add", y, _bias(b, outside, odd)) if b.chance(0.7) else y
        y = _behind(b, y, odd)
        if not ("float between" in odd and b.chance()):
            y = _between(b, y, outside, rank, odd)
        if outside == width and b.chance(0.4):
            y = _between(b, b.node("Add", y, y if "residual itself" in odd else x), width, rank, odd)
        x, width = y, outside
    b.result(x if "no last" in odd else _between(b, x, width, rank, odd))


@kind
def near_integer_products(b: Block) -> None:
    """MatMulInteger, ConvInteger and dynamic quantisation with other factors and readers."""
    odd = drawn(
        b, "other quantiser", "row scale", "wrong scale", "bytes read", "no cast", "twice", "column zero",
        "run-time weight", "scale out", "added before", "swapped", most=2,
    )  # fmt: skip
    width, outside = b.pick(1, 5, 16, 33), b.pick(3, 16)
    b.size("s", 1, 7)
    x = b.feed("x", F32, ("s", width))
    q = b.node("DynamicQuantizeLinear", x, results=3)
    scale, zero = f"{q}_1", f"{q}_2"
    if "other quantiser" in odd:
        r = b.node("DynamicQuantizeLinear", b.node("Mul", x, b.scalar(2.0)), results=3)
        scale = f"{r}_1"
        if b.chance():
            zero = f"{r}_2"
    signed = b.chance()
    dtype = np.int8 if signed else np.uint8
    w = b.constant(
        b.rng.integers(-128 if signed else 0, 128 if signed else 256, (width, outside)).astype(dtype)
    )
    if "run-time weight" in odd:
        w = b.feed("w", I8 if signed else U8, (width, outside))
    point = b.constant(np.array(b.pick(0, 5) if signed else 128, dtype))
    if "column zero" in odd:
        point = b.constant(b.rng.integers(0, 9, outside).astype(dtype))
    y = b.node("MatMulInteger", q, w, zero, point)
    if "no cast" in odd:
        b.result(y, I32)
    if "added before" in odd:
        y = b.node("Add", y, b.constant(np.array(7, np.int32)))
    y = b.node("Cast", y, to=F32)
    factor = b.pick(b.scalar(0.02), b.constant(b.rng.uniform(0.01, 0.04, outside).astype(np.float32)))
    if "row scale" in odd:
        factor = b.feed("rows", F32, ("s", 1))
    both = b.node("Mul", *((scale, factor) if b.chance() else (factor, scale)))
    if "wrong scale" in odd:
        both = b.node("Add", scale, factor)
    if "scale out" in odd:
        b.result(scale)
    out = b.node("Mul", *((y, both) if "swapped" not in odd else (both, y)))
    if "twice" in odd:
        b.result(b.node("Neg", y))
    if "bytes read" in odd:
        b.result(b.node("Cast", q, to=TensorProto.INT32), I32)
    if b.chance(0.7):
        out = b.node("Add", out, b.pick(b.weight(outside), b.weight(1, outside), b.scalar(0.3)))
    if b.chance(0.4):
        out = b.node("Relu", out)
    b.result(out)
