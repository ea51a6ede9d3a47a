"""Rounding of float32 vectors to bfloat16, as LLVM IR that a kernel imports (vcvtneps2bf16).

TensorIR's own cast is six operations on integers.  Denormal numbers become zero, as in the products that
follow.
"""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, tirx

_LANES = 16
_NAME = f"hetero_tvm_bfloat16_v{_LANES}"


def bf16_ir() -> str:
    """Definition of what :func:`bf16_bits` calls."""
    value, half, bits = f"<{_LANES} x float>", f"<{_LANES} x bfloat>", f"<{_LANES} x i16>"
    return "\n".join(
        [
            f"declare {half} @llvm.x86.avx512bf16.cvtneps2bf16.512({value})",
            f"define linkonce_odr {bits} @{_NAME}({value} %x) alwaysinline {{",
            f"  %h = call {half} @llvm.x86.avx512bf16.cvtneps2bf16.512({value} %x)",
            f"  %r = bitcast {half} %h to {bits}",
            f"  ret {bits} %r",
            "}",
            "",
        ]
    )


def bf16_bits(value: Expr, width: int) -> Expr:
    """Bits, uint16, of the bfloat16 nearest to each of ``width`` float32: 16, or one by one."""
    if width == _LANES:
        return tirx.call_extern(f"uint16x{width}", _NAME, value)
    if width != 1:
        raise ValueError(f"{width} values at once")
    # Named: TVM's simplifier drops the shift of sums of a product's bits.
    bits = tirx.Var("bits", "uint32")
    one, high = tirx.const(1, "uint32"), tirx.const(16, "uint32")
    upper = tirx.shift_right(bits, high)
    rounded = bits + tirx.const(0x7FFF, "uint32") + tirx.bitwise_and(upper, one)
    nan = tirx.bitwise_and(bits, tirx.const(0x7FFFFFFF, "uint32")) > tirx.const(0x7F800000, "uint32")
    quiet = tirx.bitwise_or(upper, tirx.const(0x40, "uint32"))
    chosen = tirx.Select(nan, quiet, tirx.shift_right(rounded, high)).astype("uint16")
    return tirx.Let(bits, tirx.reinterpret("uint32", value), chosen)
