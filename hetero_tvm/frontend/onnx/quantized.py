"""ONNX operators on 8-bit tensors that TVM's importer has no converter for.

They become what quantising exporters write: the operator on floats between quantisers, or on int32.
Targets with 8-bit units recognise these forms (``relax_passes/fusions/integers/``), others run them plainly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero_tvm.host.tvm import Expr, relax

OPERATORS = ("QLinearMatMul", "QLinearConv", "ConvInteger")

Convert = Callable[[str, "list[Expr | None]", "dict[str, Any]"], Expr]
"""Converts another ONNX operator: its name, inputs and attributes."""

Normalize = Callable[[Expr], Expr]
"""Gives an expression its type (:meth:`relax.BlockBuilder.normalize`)."""


def convert(
    name: str, inputs: list[Expr | None], attrs: dict[str, Any], other: Convert, normalize: Normalize
) -> Expr:
    """Relax expression of one node of :data:`OPERATORS`."""
    inputs = [*inputs, *[None] * (9 - len(inputs))]
    if name == "ConvInteger":
        x, w, x_zero, w_zero = inputs[:4]
        return other("Conv", [_centered(x, x_zero, normalize), _centered(w, w_zero, normalize), None], attrs)
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero, bias = inputs
    left = _dequantized(a, a_scale, a_zero, 0, normalize)
    if name == "QLinearMatMul":
        right = _dequantized(b, b_scale, b_zero, len(b.ty.shape) - 1, normalize)
        y = other("MatMul", [left, right], {})
    else:
        right = _dequantized(b, b_scale, b_zero, 0, normalize)
        y = normalize(other("Conv", [left, right, None], attrs))
        if bias is not None:
            step = normalize(relax.op.multiply(a_scale, b_scale))
            value = normalize(relax.op.astype(bias, "float32"))
            value = normalize(relax.op.multiply(value, step))
            shape = [1, -1, *(1 for _ in list(y.ty.shape)[2:])]
            y = relax.op.add(y, normalize(relax.op.reshape(value, shape)))
    y = normalize(y)
    y_scale, y_zero = _flat(y_scale, normalize), _flat(y_zero, normalize)
    return relax.op.quantize(y, y_scale, y_zero, axis=0, out_dtype=str(y_zero.ty.dtype))


def _flat(value: Expr, normalize: Normalize) -> Expr:
    """Parameter of a quantiser, as a scalar where it has one element."""
    return normalize(relax.op.reshape(value, ())) if [int(e) for e in value.ty.shape] == [1] else value


def _dequantized(x: Expr, scale: Expr, zero: Expr | None, axis: int, normalize: Normalize) -> Expr:
    """Float32 values of a quantised tensor."""
    zero = relax.const(0, str(x.ty.dtype)) if zero is None else zero
    scale, zero = _flat(scale, normalize), _flat(zero, normalize)
    return normalize(relax.op.dequantize(x, scale, zero, axis=axis, out_dtype="float32"))


def _centered(x: Expr, zero: Expr | None, normalize: Normalize) -> Expr:
    """``x`` less its zero point, as int32."""
    whole = normalize(relax.op.astype(x, "int32"))
    if zero is None:
        return whole
    zero = normalize(relax.op.astype(zero, "int32"))
    rank = len(whole.ty.shape)
    if len(zero.ty.shape) == 1:
        zero = normalize(relax.op.reshape(zero, (-1, *(1 for _ in range(rank - 1)))))
    return normalize(relax.op.subtract(whole, zero))
