"""Dtypes, vector widths and constants of GPU kernels."""

from __future__ import annotations

import math

from hetero_tvm.host.tvm import Expr, tirx, tvm
from hetero_tvm.ops.base import FusedOp

VECTOR_BYTES = 16
"""Bytes of a thread's widest access."""
INDEX_LIMIT = 2**31
"""Elements of a tensor that 32-bit offsets reach."""


def bytes_of(dtype: str) -> int:
    """Bytes of one value of ``dtype``."""
    return tvm.DataType(dtype).bits // 8


def vector_of(dtype: str, *extents: int) -> int:
    """Elements of the widest access, of 16 bytes and 8 elements at most, that divides every extent."""
    return math.gcd(min(8, VECTOR_BYTES // bytes_of(dtype)), *extents)


def whole(extent: int, part: int) -> int:
    """``extent`` rounded up to a multiple of ``part``."""
    return -(-extent // part) * part


def oversized(op: FusedOp) -> str | None:
    """Reason to refuse an operator with an operand that 32-bit offsets do not reach; None for others."""
    if max(math.prod(x.shape) for x in (*op.inputs, op.output)) >= INDEX_LIMIT:
        return "an operand has more than 2^31 values"
    return None


def cast(value: Expr, dtype: str) -> Expr:
    """``value`` as ``dtype``; itself when it is that."""
    return value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)


def const(value: float) -> Expr:
    """A float32 constant."""
    return tirx.const(value, "float32")
