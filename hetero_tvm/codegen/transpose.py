"""Transposition of a square block in registers, as LLVM IR that a kernel imports.

TensorIR has no shuffle of two vectors; written element by element a transposition is one scalar store
per element, in registers it is ``lanes * log2(lanes)`` shuffles for ``lanes**2`` of them.  Elements of 1, 2,
4 and 8 bytes are moved as they are, whatever their type.
"""

from __future__ import annotations

import functools

MOST_LANES = 16
"""Most rows and columns of a block: as many registers hold one."""


def lanes_of(words: int, bits: int) -> int:
    """Rows and columns of a block of elements of ``bits``, of a machine with vectors of ``words`` float32."""
    return min(MOST_LANES, words * 32 // bits)


def name_of(lanes: int, bits: int = 32) -> str:
    """Name of ``int32 f(void* target, int32 target_stride, void* source, int32 source_stride)``."""
    return f"hetero_tvm_transpose_v{lanes}" + ("" if bits == 32 else f"_{bits}")


@functools.cache
def ir(lanes: int, bits: int = 32) -> str:
    """Definition of ``target[c][r] = source[r][c]``, ``lanes`` x ``lanes`` elements; strides in elements.

    For each bit b of the index, rows i and i + 2**b exchange their off-diagonal 2**b x 2**b blocks
    (Eklundh, 1972).  Plain shuffles: LLVM has instructions for them on every target.
    """
    element = "float" if bits == 32 else f"i{bits}"
    vector, align = f"<{lanes} x {element}>", bits // 8
    name = name_of(lanes, bits)
    lines = [f"define linkonce_odr i32 @{name}(ptr %t, i32 %ts, ptr %s, i32 %ss) alwaysinline {{"]
    rows = []
    for r in range(lanes):
        lines += [
            f"  %so{r} = mul i32 %ss, {r}",
            f"  %sp{r} = getelementptr {element}, ptr %s, i32 %so{r}",
            f"  %row{r} = load {vector}, ptr %sp{r}, align {align}",
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
            f"  %tp{r} = getelementptr {element}, ptr %t, i32 %to{r}",
            f"  store {vector} {rows[r]}, ptr %tp{r}, align {align}",
        ]
    return "\n".join([*lines, "  ret i32 0", "}"]) + "\n"


BYTES = 16
"""Rows and columns of the block of bytes that :func:`bytes_ir` transposes."""


@functools.cache
def bytes_ir() -> str:
    """Definition of :data:`BYTES_NAME`: ``target[c][r] = source[r][c]``, 16 x 16 bytes, both compact.

    Two stages of four shuffles of 64 bytes, each of two registers: one instruction where bytes can be
    permuted freely (AVX-512 VBMI).
    """
    vector, half = "<64 x i8>", BYTES // 2
    lines = [f"define linkonce_odr i32 @{BYTES_NAME}(ptr %t, ptr %te, ptr %s, ptr %se) alwaysinline {{"]
    for n in range(4):
        lines += [
            f"  %sp{n} = getelementptr i8, ptr %s, i32 {64 * n}",
            f"  %row{n} = load {vector}, ptr %sp{n}, align 1",
        ]

    def shuffle(name: str, a: str, b: str, places: list[int]) -> None:
        indices = ", ".join(f"i32 {place}" for place in places)
        lines.append(f"  {name} = shufflevector {vector} {a}, {vector} {b}, <64 x i32> <{indices}>")

    for rows in range(2):  # eight rows of half of the columns, column by column
        for columns in range(2):
            places = [r * BYTES + columns * half + c for c in range(half) for r in range(half)]
            shuffle(f"%half{rows}{columns}", f"%row{2 * rows}", f"%row{2 * rows + 1}", places)
    for n in range(4):
        columns, first = divmod(n, 2)
        places = [
            (first * 4 + c) * half + r + 64 * rows for c in range(4) for rows in range(2) for r in range(half)
        ]
        shuffle(f"%out{n}", f"%half0{columns}", f"%half1{columns}", places)
        lines += [
            f"  %tp{n} = getelementptr i8, ptr %t, i32 {64 * n}",
            f"  store {vector} %out{n}, ptr %tp{n}, align 1",
        ]
    return "\n".join([*lines, "  ret i32 0", "}"]) + "\n"


BYTES_NAME = "hetero_tvm_transpose_bytes"
"""Name of ``int32 f(char* target, char* its last, char* source, char* its last)``; the last bytes tell TVM
how much of a buffer is used."""
