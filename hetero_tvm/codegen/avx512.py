"""Functions for AVX-512 that LLVM does not find by itself, as LLVM IR that a kernel imports.

A kernel wraps its body in ``pragma_import_llvm`` with :func:`gelu_erf_ir` and calls
:data:`GELU_ERF` on ``float32x16``; the definition is inlined.
"""

from __future__ import annotations

import functools
import math
import struct

import numpy as np

GELU_ERF = "hetero_tvm_gelu_erf_v16"
_SEGMENTS = 16
_END = 5.2
"""|x| from which the normal distribution's cdf counts as 0 or 1: it is within 1e-7."""


@functools.cache
def cdf_table() -> np.ndarray:
    """Cubics for (normal cdf - 1/2) on 16 equal segments of [0, 5.2]: float32 [4, 16], constant term first.

    The variable of a segment runs from -1/2 to 1/2.  The last segment is ``1/2 - 2**-21 (1/2 - r)**3``,
    which is exactly 1/2 at its end, so that large negative x give zero.
    """
    width = _END / _SEGMENTS
    nodes = np.cos(np.pi * (np.arange(40) + 0.5) / 40) / 2
    table = np.zeros((4, _SEGMENTS))
    for segment in range(_SEGMENTS - 1):
        x = (segment + 0.5 + nodes) * width
        centred_cdf = [0.5 * math.erf(value / math.sqrt(2)) for value in x]
        fitted = np.polynomial.chebyshev.chebfit(2 * nodes, centred_cdf, 3)
        table[:, segment] = np.polynomial.chebyshev.cheb2poly(fitted) * 2.0 ** np.arange(4)
    table[:, -1] = np.array([0.5, 0.0, 0.0, 0.0]) + 2.0**-21 * np.array([-0.125, 0.75, -1.5, 1.0])
    return table.astype(np.float32)


@functools.cache
def gelu_erf_ir() -> str:
    """Definition of :data:`GELU_ERF`: ``x * cdf(x)`` for 16 values by cubics, absolute error 2e-6.

    A third of the work of one polynomial for the whole range: each of the four coefficients is one
    permutation of a table in memory, beside the FMA units rather than on them.
    """
    vector, integers = "<16 x float>", "<16 x i32>"

    def constant(values: np.ndarray) -> str:
        return "<" + ", ".join(f"float {_hex(value)}" for value in values) + ">"

    def splat(value: float) -> str:
        return constant(np.full(16, value, np.float32))

    last = splat(_SEGMENTS - 0.5 - 1e-6)
    lines = [
        f"define linkonce_odr {vector} @{GELU_ERF}({vector} %x) alwaysinline {{",
        f"  %a = call {vector} @llvm.fabs.v16f32({vector} %x)",
        f"  %s = call {vector} @llvm.fma.v16f32({vector} %a, {vector} {splat(_SEGMENTS / _END)}, "
        f"{vector} {splat(-0.5)})",
        f"  %above = fcmp olt {vector} {last}, %s",  # so NaN stays
        f"  %y = select <16 x i1> %above, {vector} {last}, {vector} %s",
        f"  %n = call {vector} @llvm.nearbyint.v16f32({vector} %y)",
        f"  %r = fsub {vector} %y, %n",
        f"  %i = fptosi {vector} %n to {integers}",
    ]
    for power, row in enumerate(cdf_table()):
        lines.append(
            f"  %c{power} = call {vector} @llvm.x86.avx512.permvar.sf.512("
            f"{vector} {constant(row)}, {integers} %i)"
        )
    lines += [
        f"  %p2 = call {vector} @llvm.fma.v16f32({vector} %c3, {vector} %r, {vector} %c2)",
        f"  %p1 = call {vector} @llvm.fma.v16f32({vector} %p2, {vector} %r, {vector} %c1)",
        f"  %p0 = call {vector} @llvm.fma.v16f32({vector} %p1, {vector} %r, {vector} %c0)",
        f"  %p = call {vector} @llvm.copysign.v16f32({vector} %p0, {vector} %x)",
        f"  %cdf = fadd {vector} %p, {splat(0.5)}",
        f"  %g = fmul {vector} %x, %cdf",
        f"  ret {vector} %g",
        "}",
        f"declare {vector} @llvm.fma.v16f32({vector}, {vector}, {vector})",
        *(f"declare {vector} @llvm.{name}.v16f32({vector})" for name in ("fabs", "nearbyint")),
        f"declare {vector} @llvm.copysign.v16f32({vector}, {vector})",
        f"declare {vector} @llvm.x86.avx512.permvar.sf.512({vector}, {integers})",
    ]
    return "\n".join(lines) + "\n"


def _hex(value: float) -> str:
    """A float32 as LLVM writes it: the bits of the equal double."""
    return "0x" + struct.pack(">d", float(np.float32(value))).hex().upper()
