"""Caches of GroupQueryAttention: places of new keys and values, buffers, and numbers of 8 and 4 bits."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.graph.body import Body, as_text


def cache_places(b: Body, x: str, by_sequence: list[int], by_step: list[int]) -> str:
    """Places in the caches of GroupQueryAttention of the new steps of ``x`` [B, N, S, D].

    Input 5 has the number of keys of each sequence, with the new ones, less one.  The steps of a prompt,
    where input 6 (the greatest number of keys) is the number of steps, begin at 0: shorter sequences have
    padding behind them.  Input 16 has the number of steps of each sequence; behind them is padding.
    """
    lengths = b.op("Cast", b.input(5), to=TensorProto.INT64)
    steps = b.extent(x, 2)
    new = b.op("Cast", b.input(16), to=TensorProto.INT64) if b.input(16) else steps
    first = b.op("Sub", b.op("Add", lengths, b.const(1, "int64")), new)
    if b.input(6) and not b.input(16) and (b.shape(b.input(0)) or (None, None))[1] != 1:
        most, zero = _total(b), b.const(0, "int64")
        outside = b.op("Or", b.op("Less", lengths, zero), b.op("Less", zero, first))
        # A length that no prompt of so many steps has becomes a place that the cache refuses.
        start = b.op("Where", outside, b.const(-1, "int64"), zero)
        first = b.op("Where", b.op("Equal", most, steps), start, first)
    return b.op("Add", b.op("Reshape", first, b.const(by_sequence, "int64")), counted_along(b, x, by_step))


def cached(b: Body, past: str, x: str) -> str:
    """A cache [B, N, P, D] with new rows ``x`` [B, N, S, D]; longer by S, unless it is a buffer."""
    if not is_buffer(b):
        empty = b.op("CastLike", b.op("ConstantOfShape", b.op("Shape", x)), past)
        past = b.op("Concat", past, empty, axis=2)
    places = cache_places(b, x, [-1, 1, 1, 1], [1, 1, -1, 1])
    rows = b.op("Expand", places, b.op("Shape", x))
    present = b.op("ScatterElements", past, rows, x, axis=2)
    b.count_from_0()  # lengths below the number of new steps are an error, as in ONNX Runtime
    return present


def lengths_checked(b: Body, query: str) -> str:
    """``query`` [B, N, S, D], behind a check that input 5, where there is no past, lies within its S steps.

    Input 5 has the number of keys of each sequence less one, and input 6 is S; elsewhere a call ends in an
    error.
    """
    lengths = b.op("Cast", b.input(5), to=TensorProto.INT64)
    first = b.every(b.op("GreaterOrEqual", lengths, b.const(0, "int64")))
    last = b.every(b.op("Less", lengths, b.extent(query, 2)))
    kept, text = b.op("Min", first, last), f"{b.input(5)} must lie within the steps"
    zero = b.checked(b.const(0.0), kept, "float32", text)
    if b.input(6):
        whole = b.every(b.op("Equal", _total(b), b.extent(query, 2)))
        zero = b.checked(zero, whole, "float32", f"{b.input(6)} must be the number of steps")
    return b.op("Add", query, b.op("CastLike", zero, query))


def total_checked(b: Body, last: str, key: str, mask: str) -> str:
    """``last`` (int64), behind a check that input 6 goes with the other operands.

    Elsewhere a call ends in an error.  Input 6, the greatest number of keys that a sequence has, lies above
    input 5.  It is the extent of ``key`` [B, N, T, D], or within it where that is a buffer, and the last
    extent of an added ``mask``.
    """
    if not b.input(6):
        return last
    total, lengths = _total(b), b.op("Cast", b.input(5), to=TensorProto.INT64)
    fits = "LessOrEqual" if is_buffer(b) else "Equal"
    kept = [b.every(b.op("Less", lengths, total)), b.every(b.op(fits, total, b.extent(key, 2)))]
    last = b.checked(last, b.op("Min", *kept), "int64", f"{b.input(6)} must be the greatest number of keys")
    if mask:
        kept = [b.every(b.op("Equal", total, b.extent(mask, 3)))]
        last = b.checked(last, *kept, "int64", f"the last extent of {mask} must be {b.input(6)}")
    return last


def _total(b: Body) -> str:
    """Input 6 as int64 [1]."""
    return b.op("Reshape", b.op("Cast", b.input(6), to=TensorProto.INT64), b.const([1], "int64"))


def widened(b: Body, mask: str, key: str) -> str:
    """``mask`` [B or 1, N or 1, S, T] with zeros behind T, for keys that other masks hide."""
    room = b.op("Sub", b.extent(key, 2), b.extent(mask, 3))
    return b.op("Pad", mask, b.op("Concat", b.const([0] * 7, "int64"), room, axis=0))


def is_buffer(b: Body) -> bool:
    """Whether the present keys have the extents of the past ones, by number or by symbol."""
    before, after = b.declared(b.input(3)), b.declared(b.wants(1)) if b.wants(1) else None
    return before is not None and after is not None and before[2] is not None and before[2] == after[2]


def counted_along(b: Body, x: str, shape: list[int]) -> str:
    """The numbers 0, 1, ... along axis 2 of ``x``, reshaped."""
    length = b.op("Reshape", b.extent(x, 2), b.const(np.zeros(0), "int64"))
    counted = b.op("Range", b.const(0, "int64"), length, b.const(1, "int64"))
    return b.op("Reshape", counted, b.const(shape, "int64"))


def cache_bits(b: Body, letter: str) -> int:
    """Bits of the numbers of a cache of keys (``k``) or values (``v``); 0 where they are floats.

    Raises
    ------
    UnsupportedOperatorError : a type without a scale, or a scale without a type; names the node.
    """
    name, scaled = f"{letter}_quant_type", bool(b.input(12 + "kv".index(letter)))
    kind, bits = as_text(b.attributes.get(name, "NONE")), int(b.attributes.get("kv_cache_bit_width", 0))
    if kind == "NONE" and not scaled and not bits:
        return 0
    bits = bits or 8
    if kind == "NONE" or not scaled or bits not in (4, 8):
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} ({b.node.op_type}) has {name}={kind!r}, kv_cache_bit_width={bits} and "
            f"{'a' if scaled else 'no'} scale of its quantized cache, which do not go together.",
            hint="A quantized cache has 4 or 8 bits, a type and a scale; build the model with one, or with a "
            "cache of floats.",
        )
    return bits


def quantized_rows(b: Body, x: str, scale: str, bits: int) -> str:
    """Rows [B, N, S, D] as a quantized cache stores them: int8, or two numbers of 4 bits in a byte."""
    low, high = (-128.0, 127.0) if bits == 8 else (0.0, 15.0)
    steps = b.op("Round", b.op("Div", x, scale))
    if bits == 4:
        steps = b.op("Add", steps, b.const(8.0))
    steps = b.op("Min", b.op("Max", steps, b.const(low)), b.const(high))
    if bits == 8:
        return b.op("Cast", steps, to=TensorProto.INT8)
    ends = b.const([np.iinfo(np.int64).max], "int64")
    axis, two = b.const([3], "int64"), b.const([2], "int64")
    even, odd = (b.op("Slice", steps, b.const([n], "int64"), ends, axis, two) for n in range(2))
    return b.op("Cast", b.op("Add", even, b.op("Mul", odd, b.const(16.0))), to=TensorProto.UINT8)


def dequantized_rows(b: Body, stored: str, scale: str, bits: int) -> str:
    """Numbers of a quantized cache."""
    whole = b.op("Cast", stored, to=TensorProto.FLOAT)
    if bits == 4:
        odd = b.op("Floor", b.op("Mul", whole, b.const(1 / 16)))
        even = b.op("Sub", whole, b.op("Mul", odd, b.const(16.0)))
        pairs = [b.op("Unsqueeze", part, b.const([4], "int64")) for part in (even, odd)]
        flat = b.op("Reshape", b.op("Concat", *pairs, axis=4), b.const([0, 0, 0, -1], "int64"))
        whole = b.op("Sub", flat, b.const(8.0))
    return b.op("Mul", whole, scale)
