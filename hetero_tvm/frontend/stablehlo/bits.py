"""Operators on the bits of whole numbers."""

from __future__ import annotations

import numpy as np

from hetero_tvm.frontend.nodes import Untranslatable, onnx_type
from hetero_tvm.frontend.stablehlo.op import Op


def bitcast(op: Op) -> str:
    """The same bits as a number of another type of as many."""
    if np.dtype(op.dtype()).itemsize != np.dtype(op.result_dtype).itemsize:
        raise Untranslatable("numbers of other widths")
    return op.emit("BitCast", op.inputs[0], to=onnx_type(op.result_dtype))


def _width(op: Op) -> int:
    return 8 * np.dtype(op.dtype()).itemsize


def _plain(op: Op, name: str) -> str:
    """The bits of a number as one without a sign."""
    dtype = op.dtype()
    return name if dtype.startswith("u") else op.emit("Cast", name, to=onnx_type(f"u{dtype}"))


def _back(op: Op, name: str) -> str:
    dtype = op.dtype()
    return name if dtype.startswith("u") else op.emit("Cast", name, to=onnx_type(dtype))


def shift(op: Op, direction: str) -> str:
    """A shift that fills with zeros; by the width or more, nothing is left."""
    amount = _plain(op, op.inputs[1])
    moved = op.emit("BitShift", _plain(op, op.inputs[0]), amount, direction=direction)
    unsigned = op.dtype() if op.dtype().startswith("u") else f"u{op.dtype()}"
    fits = op.emit("Less", amount, op.const(_width(op), unsigned))
    return _back(op, op.emit("Where", fits, moved, op.const(0, unsigned)))


def shift_right_arithmetic(op: Op) -> str:
    """A shift that fills with the first bit: where that is one, the complement is shifted."""
    bits, unsigned = _plain(op, op.inputs[0]), f"u{op.dtype().removeprefix('u')}"
    last = op.const(_width(op) - 1, unsigned)
    amount = op.emit("Min", _plain(op, op.inputs[1]), last)
    is_set = op.emit("Greater", bits, op.const((1 << (_width(op) - 1)) - 1, unsigned))
    turned = op.emit("Where", is_set, op.emit("BitwiseNot", bits), bits)
    moved = op.emit("BitShift", turned, amount, direction="RIGHT")
    return _back(op, op.emit("Where", is_set, op.emit("BitwiseNot", moved), moved))


def population_count(op: Op) -> str:
    return _back(op, _ones(op, _plain(op, op.inputs[0])))


def leading_zeros(op: Op) -> str:
    """Zeros before the first one: what is left when all bits below it are ones too."""
    width = _width(op)
    bits, unsigned = _plain(op, op.inputs[0]), f"u{op.dtype().removeprefix('u')}"
    step = 1
    while step < width:
        moved = op.emit("BitShift", bits, op.const(step, unsigned), direction="RIGHT")
        bits = op.emit("BitwiseOr", bits, moved)
        step *= 2
    return _back(op, op.emit("Sub", op.const(width, unsigned), _ones(op, bits)))


def _ones(op: Op, bits: str) -> str:
    """Number of ones, summed by pairs of fields that grow."""
    width, unsigned = _width(op), f"u{op.dtype().removeprefix('u')}"
    field = 1
    while field < width:
        mask = op.const(sum(((1 << field) - 1) << at for at in range(0, width, 2 * field)), unsigned)
        high = op.emit("BitShift", bits, op.const(field, unsigned), direction="RIGHT")
        bits = op.emit("Add", op.emit("BitwiseAnd", bits, mask), op.emit("BitwiseAnd", high, mask))
        field *= 2
    return bits


def reduce_precision(op: Op) -> str:
    """float32 rounded to fewer bits of mantissa, by the difference to a multiple of it (Dekker, 1971)."""
    exponent, mantissa = (int(op.raw.attributes[name]) for name in ("exponent_bits", "mantissa_bits"))
    if op.dtype() != "float32" or exponent != 8 or not 0 < mantissa <= 23:
        raise Untranslatable(f"numbers of {exponent} bits of exponent and {mantissa} of mantissa")
    (x,) = op.inputs
    if mantissa == 23:
        return x
    large = op.emit("Mul", x, op.const(2.0 ** (23 - mantissa) + 1, "float32"))
    rounded = op.emit("Sub", large, op.emit("Sub", large, x))
    return op.emit("Where", op.emit("IsInf", large), x, rounded)
