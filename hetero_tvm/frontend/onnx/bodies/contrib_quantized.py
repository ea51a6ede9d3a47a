"""ONNX Runtime's operators on 8-bit tensors, written as the operator on floats between quantisers.

Static quantisers in operator form write them (``QuantFormat.QOperator``), and optimised files hold them.
Those that multiply with scales known at run time become ONNX's own integer product.  Semantics: ONNX Runtime,
docs/ContribOperators.md; those of ``QLinearConv`` and ``QLinearMatMul``, which ONNX knows, are in
``frontend/onnx/quantized.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from onnx import TensorProto

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.graph.body import Body


def _dequantized(b: Body, first: int, axis: int | None = None) -> str:
    """Float32 values of the input at ``first``, whose scale and zero point follow it."""
    operands = [b.input(n) for n in range(first, first + 3)]
    per_axis = axis is not None and b.rank(operands[1], 0) == 1 and b.shape(operands[1]) != (1,)
    attributes = {"axis": axis} if per_axis and b.opset >= 13 else {}
    return b.op("DequantizeLinear", *filter(None, operands), **attributes)


def _quantize(b: Body, y: str, first: int) -> None:
    """Give ``y`` as the result, with the scale and zero point at ``first``."""
    operands = [b.input(first), b.input(first + 1)]
    b.op("QuantizeLinear", y, *filter(None, operands), output=b.wants(0))


def _binary(kind: str) -> Callable[[Body], None]:
    """Two quantised operands: QLinearAdd, QLinearMul."""
    return lambda b: _quantize(b, b.op(kind, _dequantized(b, 0), _dequantized(b, 3)), 6)


def _unary(kind: str, *kept: str) -> Callable[[Body], None]:
    """One quantised operand, and the attributes that the operator has without quantisers."""

    def expansion(b: Body) -> None:
        if int(b.attributes.get("channels_last", 0)):
            raise UnsupportedOperatorError(
                f"Node {b.node.name!r} ({b.node.op_type}) has channels_last, which is not supported.",
                hint="Take the file it was made from, before ONNX Runtime optimised it.",
            )
        own = {name: b.attributes[name] for name in kept if name in b.attributes}
        _quantize(b, b.op(kind, _dequantized(b, 0), **own), 3)

    return expansion


def _softmax(b: Body) -> None:
    """The operator of its own opset: before 13 it flattens from its axis on."""
    meant, axis = int(b.attributes.get("opset", 13)), int(b.attributes.get("axis", -1))
    x = b.input(0)
    rank = b.rank(x, 0)
    if (meant >= 13) != (b.opset >= 13) and axis not in (-1, rank - 1):
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} (QLinearSoftmax) follows opset {meant} in a file of opset {b.opset}.",
            hint="Take the file it was made from, before ONNX Runtime optimised it.",
        )
    _quantize(b, b.op("Softmax", _dequantized(b, 0), axis=axis), 3)


def _concat(b: Body) -> None:
    parts = [_dequantized(b, first) for first in range(2, len(b.node.input), 3)]
    _quantize(b, b.op("Concat", *parts, axis=int(b.attributes["axis"])), 0)


def _where(b: Body) -> None:
    _quantize(b, b.op("Where", b.input(0), _dequantized(b, 1), _dequantized(b, 4)), 7)


def _gemm(b: Body) -> None:
    """QGemm: quantised operands, a bias in the step of the accumulators, a quantised or float result."""
    turned = [bool(b.attributes.get(f"trans{side}", 0)) for side in "AB"]
    left, right = _dequantized(b, 0), _dequantized(b, 3, 0 if turned[1] else 1)
    left, right = (
        b.op("Transpose", x, perm=[1, 0]) if turn else x
        for x, turn in zip((left, right), turned, strict=True)
    )
    y, factor = b.op("MatMul", left, right), float(b.attributes.get("alpha", 1.0))
    if factor != 1.0:
        y = b.op("Mul", y, b.const(factor))
    if b.input(6):
        step = b.op("Mul", b.input(1), b.input(4))
        if factor != 1.0:
            step = b.op("Mul", step, b.const(factor))
        y = b.op("Add", y, b.op("Mul", b.op("Cast", b.input(6), to=TensorProto.FLOAT), step))
    if b.input(7):
        _quantize(b, y, 7)
    else:
        b.end(0, y)


def _scaled(b: Body, product: str, scale: str, bias: str) -> None:
    """Give an int32 product times its scale, plus a bias."""
    y = b.op("Mul", b.op("Cast", product, to=TensorProto.FLOAT), scale)
    b.end(0, b.op("Add", y, bias) if bias else y)


def _integer_product(b: Body) -> None:
    """MatMulIntegerToFloat."""
    operands = [b.input(0), b.input(1), b.input(4), b.input(5)]
    while not operands[-1]:
        operands.pop()
    product = b.op("MatMulInteger", *operands)
    _scaled(b, product, b.op("Mul", b.input(2), b.input(3)), b.input(6))


def _dynamic_product(b: Body) -> None:
    """DynamicQuantizeMatMul: the left operand is quantised here."""
    x = b.op("DynamicQuantizeLinear", b.input(0))
    node = b.nodes[-1]
    node.output.extend(f"{x}_{n}" for n in ("scale", "zero"))
    _, scale, zero = node.output
    product = b.op("MatMulInteger", x, b.input(1), zero, *filter(None, [b.input(3)]))
    _scaled(b, product, b.op("Mul", scale, b.input(2)), b.input(4))


def _plain(b: Body) -> None:
    """QuantizeLinear and DequantizeLinear as ONNX has them."""
    own = dict(b.attributes) if b.opset >= 13 else {}
    operands = [b.input(n) for n in range(3) if b.input(n)]
    b.op(b.node.op_type, *operands, output=b.wants(0), **own)


_WINDOW = ("kernel_shape", "strides", "pads", "auto_pad", "ceil_mode", "count_include_pad")

QUANTIZED: dict[str, Callable[[Body], None]] = {
    "QLinearAdd": _binary("Add"),
    "QLinearMul": _binary("Mul"),
    "QLinearAveragePool": _unary("AveragePool", *_WINDOW),
    "QLinearGlobalAveragePool": _unary("GlobalAveragePool"),
    "QLinearSigmoid": _unary("Sigmoid"),
    "QLinearLeakyRelu": _unary("LeakyRelu", "alpha"),
    "QLinearSoftmax": _softmax,
    "QLinearConcat": _concat,
    "QLinearWhere": _where,
    "QGemm": _gemm,
    "MatMulIntegerToFloat": _integer_product,
    "DynamicQuantizeMatMul": _dynamic_product,
    "QuantizeLinear": _plain,
    "DequantizeLinear": _plain,
}
"""Operator of ONNX Runtime's domain -> function that writes it out."""
