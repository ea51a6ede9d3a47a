"""Numbers that stay in registers of their own, as LLVM IR that a kernel imports.

LLVM packs chains of equal scalar steps into vectors (its SLP vectoriser), loads at places of their own into
gathers: where each step waits for memory, a gather waits for the slowest of its lanes, and many CPUs take
several cycles for each lane of it.  What has passed through an empty line of assembly is packed no more.
"""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, tirx

_NAME = "hetero_tvm_scalar_i32"


def ir() -> str:
    """Definition of the identity of int32 that nothing is known about."""
    return (
        f"define linkonce_odr i32 @{_NAME}(i32 %x) alwaysinline {{\n"
        '  %y = call i32 asm "", "=r,0"(i32 %x)\n'
        "  ret i32 %y\n}\n"
    )


def scalar(value: Expr) -> Expr:
    """``value``, an int32, in a register of its own; the kernel must import :func:`ir`."""
    return tirx.call_pure_extern("int32", _NAME, value)
