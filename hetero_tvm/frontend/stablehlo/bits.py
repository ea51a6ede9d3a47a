"""Operators on the bits of whole numbers."""

from __future__ import annotations

import functools

import numpy as np

from hetero_tvm.frontend.nodes import Untranslatable, onnx_type
from hetero_tvm.frontend.stablehlo.op import Op, narrow_of, reshaped


def bitcast(op: Op) -> str:
    """The same bits as numbers of another type, of which one may be several of the other."""
    source, target = np.dtype(op.dtype()), np.dtype(op.result_dtype)
    if "bool" in (source.name, target.name) or narrow_of(op.raw.results[0].type):
        raise Untranslatable("bits of these types")
    if source.itemsize == target.itemsize:
        return _seen_as(op, op.inputs[0], source.name, target.name)
    fewer, more = sorted([8 * source.itemsize, 8 * target.itemsize])
    wide, narrow = f"uint{more}", f"uint{fewer}"
    count, amounts = more // fewer, np.arange(0, more, fewer)
    if source.itemsize > target.itemsize:
        bits = reshaped(op, _seen_as(op, op.inputs[0], source.name, wide), [*op.shape(), 1])
        parts = op.emit("BitShift", bits, op.const(amounts, wide), direction="RIGHT")
        parts = op.emit("BitwiseAnd", parts, op.const((1 << fewer) - 1, wide))
        return _seen_as(op, op.emit("Cast", parts, to=onnx_type(narrow)), narrow, target.name)
    parts = op.emit("Cast", _seen_as(op, op.inputs[0], source.name, narrow), to=onnx_type(wide))
    parts = op.emit("BitShift", parts, op.const(amounts, wide), direction="LEFT")
    places = [op.emit("Gather", parts, op.const(i), axis=-1) for i in range(count)]
    bits = functools.reduce(lambda one, other: op.emit("BitwiseOr", one, other), places)
    return _seen_as(op, bits, wide, target.name)


def _seen_as(op: Op, name: str, dtype: str, other: str) -> str:
    """Bits as a type of the same width; those of bfloat16 are the first half of a float32's."""
    if "float16" in (dtype, other) and dtype != other:
        raise Untranslatable("bits of float16, which is computed in float32")
    if dtype == "bfloat16" != other:
        # Kernels compute it in float32, without rounding between them: it is rounded here, halves to even.
        exact = op.emit("Cast", name, to=onnx_type("float32"))
        whole, amount = op.emit("BitCast", exact, to=onnx_type("uint32")), op.const(16, "uint32")
        odd = op.emit(
            "BitwiseAnd", op.emit("BitShift", whole, amount, direction="RIGHT"), op.const(1, "uint32")
        )
        near = op.emit("Add", op.emit("Add", whole, op.const(0x7FFF, "uint32")), odd)
        half = op.emit("BitShift", near, amount, direction="RIGHT")
        half = op.emit("Where", op.emit("IsNaN", exact), op.const(0x7FC0, "uint32"), half)
        return _seen_as(op, op.emit("Cast", half, to=onnx_type("uint16")), "uint16", other)
    if other == "bfloat16" != dtype:
        half = op.emit("Cast", _seen_as(op, name, dtype, "uint16"), to=onnx_type("uint32"))
        whole = op.emit("BitShift", half, op.const(16, "uint32"), direction="LEFT")
        return op.emit("Cast", op.emit("BitCast", whole, to=onnx_type("float32")), to=onnx_type("bfloat16"))
    return name if dtype == other else op.emit("BitCast", name, to=onnx_type(other))


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
