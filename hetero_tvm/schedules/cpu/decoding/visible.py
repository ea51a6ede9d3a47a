"""Keys that a row of a text sees, and the scale of their scores."""

from __future__ import annotations

from hetero_tvm.codegen.vector_functions import log1p
from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.ops.decoding.contracts import CachedAttention
from hetero_tvm.schedules.cpu.decoding.symbolic import SymbolicKernel, quotient, remainder
from hetero_tvm.schedules.emit import constant, int32


def first_key(k: SymbolicKernel, op: CachedAttention, length: Expr) -> Expr:
    """First key that a row sees which is the last of ``length``."""
    start = k.let(tirx.max(length - op.window, int32(0))) if op.window else int32(0)
    if op.chunk:
        start = k.let(tirx.max(length - 1 - remainder(length - 1, op.chunk), start))
    return start


def scale_of(k: SymbolicKernel, op: CachedAttention, length: Expr) -> Expr:
    """Scale of the scores of a row which is the last of ``length``."""
    g = op.growth
    if g is None:
        return constant(op.scale)
    times = tirx.Cast("float32", quotient(length + (g.ahead - 1), g.every))
    return k.let(constant(op.scale) * (constant(1.0) + constant(g.share) * log1p(times)))
