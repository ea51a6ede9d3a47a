"""Quantised layers: QDQ and QOperator, per tensor and channel, signed and unsigned, 4 bits, dynamic."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from tests.campaign.blocks.block import F32, Block, kind


def _points(b: Block, signed: bool, channels: int = 0, flat: bool = False) -> tuple[str, str]:
    """Scale and zero point, of one tensor or of each channel."""
    shape = (channels,) if channels else ()
    scale = b.constant(b.rng.uniform(0.01, 0.05, shape).astype(np.float32))
    low, high = (-20, 21) if signed else (100, 150)
    zero = np.zeros(shape) if flat else b.rng.integers(low, high, shape)
    return scale, b.constant(np.asarray(zero).astype(np.int8 if signed else np.uint8))


def _rounded(b: Block, x: str) -> str:
    scale, zero = _points(b, b.chance())
    return b.node("DequantizeLinear", b.node("QuantizeLinear", x, scale, zero), scale, zero)


def _weight(b: Block, shape: tuple[int, ...], axis: int) -> str:
    form = b.pick("channel", "tensor", "asymmetric", "unsigned", "four")
    if form == "four" and b.opset >= 21:
        name = f"w{len(b.constants)}"
        values = b.rng.integers(-8, 8, shape).astype(np.int32).ravel()
        b.constants.append(helper.make_tensor(name, TensorProto.INT4, shape, values.tolist()))
        scale = b.constant(b.rng.uniform(0.02, 0.1, shape[axis]).astype(np.float32))
        return b.node("DequantizeLinear", name, scale, axis=axis)
    signed = form != "unsigned"
    ends = (-127, 128) if signed else (0, 256)
    values = b.rng.integers(*ends, shape).astype(np.int8 if signed else np.uint8)
    scale, zero = _points(b, signed, shape[axis] if form != "tensor" else 0, flat=form == "channel")
    extra = {} if form == "tensor" else {"axis": axis}
    return b.node("DequantizeLinear", b.constant(values), scale, zero, **extra)


@kind
def quantised_layers(b: Block) -> None:
    """Convolutions, products and sums between quantisers."""
    b.opset = b.pick(13, 17, 21)
    b.size("b", 1, 3)
    if b.chance(0.6):
        channels = b.pick(3, 8, 16, 20)
        b.size("h", 1, 13), b.size("w", 1, 13)
        x = _rounded(b, b.feed("x", F32, ("b", channels, "h", "w")))
        for _ in range(b.pick(1, 2, 3)):
            group = b.pick(1, channels)
            size = b.pick(1, 3)
            outside = channels if group > 1 else b.pick(8, 16, 5)
            pads = dict(pads=[size // 2] * 4, group=group)
            weight = _weight(b, (outside, channels // group, size, size), 0)
            y = b.node("Conv", x, weight, b.weight(outside), **pads)
            behind = b.pick("", "Relu", "HardSwish" if b.opset > 13 else "")
            y = _rounded(b, b.node(behind, y) if behind else y)
            if outside == channels and b.chance():
                y = _rounded(b, b.node("Add", x, y))
            elif b.chance(0.2):
                y, outside = _rounded(b, b.node("Concat", x, y, axis=1)), outside + channels
            x, channels = y, outside
        if b.chance(0.3):
            x = _rounded(b, b.node("GlobalAveragePool", x))
    else:
        b.size("s", 1, 11)
        width = b.pick(7, 16, 32)
        x = _rounded(b, b.feed("x", F32, ("b", "s", width)))
        for _ in range(b.pick(1, 2)):
            outside = b.pick(width, 9, 24)
            y = b.node("Add", b.node("MatMul", x, _weight(b, (width, outside), 1)), b.weight(outside))
            y = _rounded(b, b.node("Mul", y, b.node("Sigmoid", y)) if b.chance(0.3) else y)
            x, width = y, outside
        if b.chance(0.4):
            t = b.node("Transpose", x, perm=[0, 2, 1])
            x = _rounded(b, b.node("MatMul", x, t))
    b.result(x)


@kind
def integer_products(b: Block) -> None:
    """QLinearMatMul, QLinearConv, MatMulInteger and dynamic quantisation."""
    b.size("b", 1, 4)
    form = b.pick("dynamic", "qlinear", "conv", "convinteger")
    if form == "dynamic":
        width, outside = b.pick(5, 16, 33), b.pick(3, 16)
        x = b.feed("x", F32, ("b", width))
        q = b.node("DynamicQuantizeLinear", x, results=3)
        signed = b.chance()
        w = b.rng.integers(-128 if signed else 0, 128 if signed else 256, (width, outside))
        zero = np.int8(b.pick(0, 3)) if signed else np.uint8(128)
        y = b.node("MatMulInteger", q, b.constant(w.astype(zero.dtype)), f"{q}_2", b.constant(zero))
        scale = b.node("Mul", f"{q}_1", b.scalar(0.013))
        b.result(b.node("Add", b.node("Mul", b.node("Cast", y, to=F32), scale), b.weight(outside)))
        return
    signed = b.chance()
    dtype = np.int8 if signed else np.uint8
    wide = TensorProto.INT8 if signed else TensorProto.UINT8
    if form == "qlinear":
        width, outside = b.pick(5, 16, 33), b.pick(3, 16)
        x = b.feed("x", wide, ("b", width))
        w = b.constant(b.rng.integers(-128, 128, (width, outside)).astype(np.int8))
        y = b.node(
            *("QLinearMatMul", x, *_points(b, signed), w),
            *_points(b, True, outside if b.chance() else 0, flat=True),
            *(b.constant(np.float32(0.3)), b.constant(np.array(7, dtype))),
        )
        b.result(y, wide)
        return
    b.size("h", 1, 9)
    x = b.feed("x", wide, ("b", 4, "h", 6))
    w = b.constant(b.rng.integers(-128, 128, (6, 4, 3, 3)).astype(np.int8))
    if form == "convinteger":
        zero = b.constant(np.array(3, dtype))
        b.result(b.node("ConvInteger", x, w, zero, pads=[1] * 4), TensorProto.INT32)
        return
    bias = b.constant(b.rng.integers(-3000, 3000, 6).astype(np.int32))
    y = b.node(
        *("QLinearConv", x, *_points(b, signed), w, *_points(b, True, 6, flat=True)),
        *(b.constant(np.float32(0.5)), b.constant(np.array(9, dtype)), bias),
        pads=[1] * 4,
        strides=[b.pick(1, 2)] * 2,
    )
    b.result(y, wide)
