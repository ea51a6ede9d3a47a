"""Transposition of a square block in registers, as LLVM IR that a kernel imports.

TensorIR has no shuffle of two vectors; written element by element a transposition is one scalar store
per element, in registers it is ``lanes * log2(lanes)`` shuffles for ``lanes**2`` of them.
"""

from __future__ import annotations

import functools


def name_of(lanes: int) -> str:
    """Name of ``int32 f(float* target, int32 target_stride, float* source, int32 source_stride)``."""
    return f"hetero_tvm_transpose_v{lanes}"


@functools.cache
def ir(lanes: int) -> str:
    """Definition of ``target[c][r] = source[r][c]``, ``lanes`` x ``lanes`` float32; strides in elements.

    For each bit b of the index, rows i and i + 2**b exchange their off-diagonal 2**b x 2**b blocks
    (Eklundh, 1972).  Plain shuffles: LLVM has instructions for them on every target.
    """
    vector = f"<{lanes} x float>"
    lines = [f"define linkonce_odr i32 @{name_of(lanes)}(ptr %t, i32 %ts, ptr %s, i32 %ss) alwaysinline {{"]
    rows = []
    for r in range(lanes):
        lines += [
            f"  %so{r} = mul i32 %ss, {r}",
            f"  %sp{r} = getelementptr float, ptr %s, i32 %so{r}",
            f"  %row{r} = load {vector}, ptr %sp{r}, align 4",
        ]
        rows.append(f"%row{r}")
    for bit in range(lanes.bit_length() - 1):
        distance = 1 << bit
        for i in (r for r in range(lanes) if not r & distance):
            j = i | distance
            low = [lane if not lane & distance else lanes + lane - distance for lane in range(lanes)]
            high = [lanes + lane if lane & distance else lane + distance for lane in range(lanes)]
            a, c = rows[i], rows[j]
            for row, mask in ((i, low), (j, high)):
                rows[row] = f"%b{bit}r{row}"
                indices = ", ".join(f"i32 {index}" for index in mask)
                lines.append(
                    f"  {rows[row]} = shufflevector {vector} {a}, {vector} {c}, <{lanes} x i32> <{indices}>"
                )
    for r in range(lanes):
        lines += [
            f"  %to{r} = mul i32 %ts, {r}",
            f"  %tp{r} = getelementptr float, ptr %t, i32 %to{r}",
            f"  store {vector} {rows[r]}, ptr %tp{r}, align 4",
        ]
    return "\n".join([*lines, "  ret i32 0", "}"]) + "\n"
