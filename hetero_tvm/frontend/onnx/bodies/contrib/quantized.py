"""ONNX Runtime's operators on quantised tensors, written out: quantisers around the operator on floats.

Targets with 8-bit units recognise what comes out (``relax_passes/fusions/quantized.py``).  Weights of 4 bits
and less, or of one scale per block, become floats.  Semantics: ONNX Runtime, docs/ContribOperators.md.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from hetero_tvm.errors import ModelError, UnsupportedOperatorError
from hetero_tvm.frontend.onnx.bodies.contrib import attention as attentions
from hetero_tvm.frontend.onnx.bodies.contrib.layers import channels_first, channels_last
from hetero_tvm.frontend.onnx.graph.body import Body
from hetero_tvm.frontend.onnx.graph.packed import unpacked

# fmt: off
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
    1.0,
)
_FP4 = (0.0, 0.00520833333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
# fmt: on


def dequantized(b: Body, x: str, scale: str, zero: str, axis: int = 0) -> str:
    """Float32 values of a quantised tensor; a vector of scales lies along ``axis``."""
    return b.op("DequantizeLinear", x, scale, *filter(None, [zero]), axis=axis)


def quantized(b: Body, y: str, scale: str, zero: str) -> None:
    """Quantise the result of the node."""
    b.op("QuantizeLinear", y, scale, *filter(None, [zero]), output=b.wants(0))


def quantizer(b: Body) -> None:
    """QuantizeLinear and DequantizeLinear of ONNX Runtime: as ONNX has them."""
    kept = {k: v for k, v in b.attributes.items() if k in ("axis", "block_size", "saturate", "output_dtype")}
    inputs = [name for name in (b.input(n) for n in range(3)) if name]
    b.op(b.node.op_type, *inputs, output=b.wants(0), **kept)


def binary(b: Body) -> None:
    """QLinearAdd and QLinearMul."""
    # a, its scale, its zero point, b, ..., scale of the result, its zero point
    operands = [dequantized(b, *(b.input(3 * n + i) for i in range(3))) for n in range(2)]
    y = b.op(b.node.op_type.removeprefix("QLinear"), *operands)
    quantized(b, y, b.input(6), b.input(7))


def unary(b: Body) -> None:
    """QLinearSigmoid, QLinearLeakyRelu, pools, means and softmax: one operand, then the result's scale."""
    kind = b.node.op_type.removeprefix("QLinear")
    own = {k: v for k, v in b.attributes.items() if k not in ("channels_last", "opset")}
    x = dequantized(b, *(b.input(n) for n in range(3)))
    last = bool(b.attributes.get("channels_last", 0))
    rank = b.rank(b.input(0), 4)
    if last:
        x = b.op("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])
    if kind == "ReduceMean":
        axes = [int(a) for a in own.get("axes", range(rank))]
        y = b.reduce(kind, x, axes, int(own.get("keepdims", 1)), axes_as_input=18)
    elif kind == "Softmax":
        axis = int(own.get("axis", -1))
        if int(b.attributes.get("opset", 13)) < 13 and axis not in (-1, rank - 1):
            raise _refusal(b, "a softmax over several axes (opset below 13)")
        y = b.op(kind, x, axis=axis)
    else:
        y = b.op(kind, x, **own)
    if last:
        y = channels_last(b, y, rank)
    quantized(b, y, b.input(3), b.input(4))


def convolution(b: Body) -> None:
    """QLinearConv as ONNX has it, over images whose channels may be last."""
    last, rank = bool(b.attributes.get("channels_last", 0)), b.rank(b.input(0), 4)
    own = {k: v for k, v in b.attributes.items() if k != "channels_last"}
    x = channels_first(b, b.input(0)) if last else b.input(0)
    y = b.op("QLinearConv", x, *b.node.input[1:], **own)
    b.end(0, channels_last(b, y, rank) if last else y)


def joined(b: Body) -> None:
    """QLinearConcat: scale and zero point of the result, then tensor, scale and zero point of each part."""
    parts = [dequantized(b, *b.node.input[start : start + 3]) for start in range(2, len(b.node.input), 3)]
    quantized(b, b.op("Concat", *parts, axis=int(b.attributes["axis"])), b.input(0), b.input(1))


def choice(b: Body) -> None:
    """QLinearWhere."""
    parts = [dequantized(b, *(b.input(1 + 3 * n + i) for i in range(3))) for n in range(2)]
    quantized(b, b.op("Where", b.input(0), *parts), b.input(7), b.input(8))


def gemm(b: Body) -> None:
    """QGemm: a product with an int32 bias at the scale of the product."""
    columns = 0 if b.attributes.get("transB", 0) else 1
    left = dequantized(b, *(b.input(n) for n in range(3)))
    right = dequantized(b, *(b.input(n) for n in range(3, 6)), columns)
    own = {k: int(v) for k, v in b.attributes.items() if k in ("transA", "transB")}
    alpha = float(b.attributes.get("alpha", 1.0))
    y = b.op("Gemm", left, right, **own)
    if b.input(6):
        bias = b.op("Cast", b.input(6), to=TensorProto.FLOAT)
        y = b.op("Add", y, b.op("Mul", bias, b.op("Mul", b.input(1), b.input(4))))
    if alpha != 1.0:
        y = b.op("Mul", y, b.const(alpha))
    if b.input(7):
        quantized(b, y, b.input(7), b.input(8))
    else:
        b.end(0, y)


def integer_product(b: Body) -> None:
    """MatMulIntegerToFloat and DynamicQuantizeMatMul: a product of whole numbers, at its scale."""
    if b.node.op_type == "DynamicQuantizeMatMul":
        # a, b, scale of b, zero point of b, bias
        x = b.op("DynamicQuantizeLinear", b.input(0))
        x_scale, x_zero = f"{x}_scale", f"{x}_zero"
        b.nodes[-1].output.extend([x_scale, x_zero])
        scale, zero, bias = b.input(2), b.input(3), b.input(4)
    else:
        # a, b, scale of a, scale of b, zero point of a, zero point of b, bias
        x, x_scale, x_zero = b.input(0), b.input(2), b.input(4)
        scale, zero, bias = b.input(3), b.input(5), b.input(6)
    whole = b.op("MatMulInteger", x, b.input(1), *([x_zero, zero] if zero else [x_zero] if x_zero else []))
    y = b.op("Cast", whole, to=TensorProto.FLOAT)
    y = b.op("Mul", y, b.op("Mul", x_scale, scale))
    b.end(0, b.op("Add", y, bias) if bias else y)


def attention(b: Body) -> None:
    """QAttention: Attention of quantised input and weights."""
    # input, weight, bias, input scale, weight scale, mask, input zero point, weight zero point, past
    x = dequantized(b, b.input(0), b.input(3), b.input(6))
    weight = dequantized(b, b.input(1), b.input(4), b.input(7), 1)
    inner = helper.make_node(
        "Attention", [x, weight, b.input(2), b.input(5), b.input(8)], b.node.output, name=b.node.name
    )
    inner.attribute.extend(b.node.attribute)
    b.within(inner, attentions.attention)


# ---- weights of few bits ---------------------------------------------------------------------


def n_bits(b: Body) -> None:
    """MatMulNBits: a product with weights [N, blocks, bytes] of 2, 4 or 8 bits."""
    # a, weights, scales, zero points, group indices, bias
    rows, columns = int(b.attributes["N"]), int(b.attributes["K"])
    bits, block = int(b.attributes.get("bits", 4)), int(b.attributes["block_size"])
    if layout := int(b.attributes.get("weight_prepacked", 0)):
        raise _refusal(b, f"weights in the layout of a GPU's kernels (weight_prepacked={layout})")
    count = -(-columns // block)
    _refuse_counts(b, 1, rows * count * (block * bits // 8))
    _refuse_counts(b, 2, rows * count)
    if b.input(3):
        packed = _array(b, 3).dtype == np.uint8
        _refuse_counts(b, 3, rows * (-(-count * bits // 8) if packed else count))
    group = np.arange(columns) // block
    if b.input(4):
        group = _array(b, 4).reshape(-1)[:columns]
        if b.input(3):  # ONNX Runtime's own numbers are not those of its documentation then
            raise _refusal(b, "zero points of groups in an order of their own (g_idx)")
        if group.shape != (columns,) or group.min() < 0 or group.max() >= count:
            raise _refusal(b, "groups that do not exist (g_idx)")
    values = unpacked(_array(b, 1), bits).reshape(rows, -1)[:, :columns]
    scales = _array(b, 2).astype(np.float32).reshape(rows, count)[:, group]
    zero: np.ndarray | float = float(1 << (bits - 1))
    if b.input(3):
        given = _array(b, 3)
        if given.dtype == np.uint8:
            packed = given.reshape(rows, -1)
            zero = unpacked(packed, bits).reshape(rows, -1)[:, group].astype(np.float32)
        else:
            zero = given.astype(np.float32).reshape(rows, count)[:, group]
    weights = (values.astype(np.float32) - zero) * scales
    y = b.op("MatMul", b.input(0), b.constant(np.ascontiguousarray(weights.T)))
    b.end(0, b.op("Add", y, b.input(5)) if b.input(5) else y)


def bnb4(b: Body) -> None:
    """MatMulBnb4: a product with weights of 4 bits that count in a table (NF4 or FP4)."""
    rows, columns = int(b.attributes["N"]), int(b.attributes["K"])
    block = int(b.attributes["block_size"])
    table = np.array(_NF4 if int(b.attributes["quant_type"]) else (*_FP4, *(-v for v in _FP4)), np.float32)
    packed = _array(b, 1).reshape(-1)
    codes = np.stack([packed >> 4, packed & 15], -1).reshape(-1)[: rows * columns]
    scales = np.repeat(_array(b, 2).astype(np.float32).reshape(-1), block)[: rows * columns]
    weights = (table[codes] * scales).reshape(rows, columns)
    b.end(0, b.op("MatMul", b.input(0), b.constant(np.ascontiguousarray(weights.T))))


def gathered_blocks(b: Body) -> None:
    """GatherBlockQuantized: a lookup in a table with a scale per block."""
    # data, indices, scales, zero points
    data, scales, bits = _array(b, 0), _array(b, 2).astype(np.float32), int(b.attributes.get("bits", 4))
    block = int(b.attributes.get("block_size", 128))
    is_packed = data.dtype == np.uint8
    if is_packed and bits < 8:
        data = unpacked(data, bits).reshape(*data.shape[:-1], -1)
    axis = int(b.attributes.get("quantize_axis", 1)) % data.ndim
    places = np.arange(data.shape[axis]) // block
    _refuse_counts(b, 2, data.size // data.shape[axis] * -(-data.shape[axis] // block))
    zero: np.ndarray | float = float(1 << (bits - 1)) if is_packed else 0.0
    if b.input(3):
        given = _array(b, 3)
        held = 8 // bits if is_packed else 1
        _refuse_counts(b, 3, scales.size // scales.shape[-1] * -(-scales.shape[-1] // held))
        if is_packed and bits < 8:
            given = unpacked(given, bits).reshape(*given.shape[:-1], -1)
            given = given[tuple(slice(0, extent) for extent in scales.shape)]
        zero = np.take(given.astype(np.float32), places, axis=axis)
    table = (data.astype(np.float32) - zero) * np.take(scales, places, axis=axis)
    axis = int(b.attributes.get("gather_axis", 0))
    b.end(0, b.op("Gather", b.constant(table), b.input(1), axis=axis))


def recurrent(b: Body) -> None:
    """DynamicQuantizeLSTM: an LSTM whose weights have 8 bits, [directions, inputs, gates].

    Inputs and states stay floats, where ONNX Runtime rounds them to 8 bits too, at every step.
    """
    # input, weights, recurrent weights, bias, lengths, h, c, peepholes, then scale and zero point of each
    weights = []
    for index, scale, zero in ((1, 8, 9), (2, 10, 11)):
        values = _array(b, index).astype(np.float32)
        factor, middle = (_array(b, n).astype(np.float32) for n in (scale, zero))
        rows = (values.shape[0], 1, -1)
        exact = (values - middle.reshape(rows)) * factor.reshape(rows)
        weights.append(b.constant(np.ascontiguousarray(exact.transpose(0, 2, 1))))
    inputs = [b.input(0), *weights, *(b.input(n) for n in range(3, 8))]
    layer = helper.make_node("LSTM", inputs, b.node.output, name=b.node.name)
    layer.attribute.extend(b.node.attribute)
    b.nodes.append(layer)


def _array(b: Body, index: int) -> np.ndarray:
    """Values of an input that must be a constant."""
    array = b.array(b.input(index))
    if array is None:
        raise _refusal(b, f"input {b.input(index)!r}, which is no constant")
    return array


def _refuse_counts(b: Body, index: int, wanted: int) -> None:
    """Refuse a constant that does not hold as many elements as the attributes of its node say."""
    size = _array(b, index).size
    if size != wanted:
        raise ModelError(
            f"Node {b.node.name!r} ({b.node.op_type}) has {size} elements in {b.input(index)!r}, "
            f"not {wanted}.",
            hint="Check the program that wrote the file: its attributes say other sizes.",
        )


def _refusal(b: Body, what: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(
        f"Node {b.node.name!r} ({b.node.op_type}) has {what}, which is not supported.",
        hint="Take the file that this one was made from.",
    )


EXPANSIONS = {
    "QuantizeLinear": quantizer,
    "DequantizeLinear": quantizer,
    "QLinearAdd": binary,
    "QLinearMul": binary,
    "QLinearSigmoid": unary,
    "QLinearLeakyRelu": unary,
    "QLinearGlobalAveragePool": unary,
    "QLinearAveragePool": unary,
    "QLinearReduceMean": unary,
    "QLinearSoftmax": unary,
    "QLinearConv": convolution,
    "QLinearConcat": joined,
    "QLinearWhere": choice,
    "QGemm": gemm,
    "MatMulIntegerToFloat": integer_product,
    "DynamicQuantizeMatMul": integer_product,
    "QAttention": attention,
    "DynamicQuantizeLSTM": recurrent,
    "MatMulNBits": n_bits,
    "MatMulBnb4": bnb4,
    "GatherBlockQuantized": gathered_blocks,
}
"""Operator -> function that writes it out."""
