"""Tables of 256 bytes looked up for a whole vector of bytes, as LLVM IR that a kernel imports.

AVX-512 VBMI permutes bytes of two registers (vpermi2b): two permutations give what each half of the table
has, and the sign of the index chooses.  Elsewhere pshufb looks up 16 bytes: the vector is looked up in each
sixteenth of the table, with indices that lie outside of it moved to where pshufb gives zero.
"""

from __future__ import annotations

import functools

_FUNCTION = "hetero_tvm_byte_table"
_SHUFFLES = {16: "llvm.x86.ssse3.pshuf.b.128", 32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}
_PERMUTE = "llvm.x86.avx512.vpermi2var.qi.512"
_OUTSIDE = 0x70
"""Amount that takes 16 and more to bytes whose highest bit is set, and none below 16."""


def function_name(width: int) -> str:
    """Name of the function of ``width`` bytes at a time: a vector of bytes and the table's address."""
    return f"{_FUNCTION}_v{width}"


@functools.cache
def byte_table_ir(width: int, permutes: bool) -> str:
    """Definition of the function for vectors of ``width`` bytes; ``permutes``: by vpermi2b, of 64."""
    vector = f"<{width} x i8>"
    body = _permuted(vector) if permutes else _shuffled(width, vector)
    head = f"define linkonce_odr {vector} @{function_name(width)}({vector} %x, ptr %table) alwaysinline {{"
    return "\n".join([*body[0], head, *body[1], "}"]) + "\n"


def _part(place: int, number: int, vector: str) -> list[str]:
    """Part ``number`` of the table from byte ``place`` on."""
    return [
        f"  %p{number} = getelementptr i8, ptr %table, i64 {place}",
        f"  %t{number} = load {vector}, ptr %p{number}, align 1",
    ]


def _permuted(vector: str) -> tuple[list[str], list[str]]:
    lines = [line for n in range(4) for line in _part(64 * n, n, vector)]
    for name, first in (("low", 0), ("high", 2)):
        operands = f"{vector} %t{first}, {vector} %x, {vector} %t{first + 1}"
        lines.append(f"  %{name} = call {vector} @{_PERMUTE}({operands})")
    lines += [
        f"  %upper = icmp slt {vector} %x, zeroinitializer",
        f"  %r = select <64 x i1> %upper, {vector} %high, {vector} %low",
        f"  ret {vector} %r",
    ]
    return [f"declare {vector} @{_PERMUTE}({vector}, {vector}, {vector})"], lines


def _shuffled(width: int, vector: str) -> tuple[list[str], list[str]]:
    shuffle, add = _SHUFFLES[width], f"llvm.uadd.sat.v{width}i8"
    lanes = ", ".join(f"i32 {lane % 16}" for lane in range(width))
    lines: list[str] = []
    for n in range(16):
        lines += _part(16 * n, n, "<16 x i8>")
        lines += [
            f"  %w{n} = shufflevector <16 x i8> %t{n}, <16 x i8> poison, <{width} x i32> <{lanes}>",
            f"  %x{n} = xor {vector} %x, splat (i8 {16 * n - 256 * (n > 7)})",
            f"  %i{n} = call {vector} @{add}({vector} %x{n}, {vector} splat (i8 {_OUTSIDE}))",
            f"  %f{n} = call {vector} @{shuffle}({vector} %w{n}, {vector} %i{n})",
        ]
        lines.append(f"  %r{n} = or {vector} %f{n}, {'zeroinitializer' if n == 0 else f'%r{n - 1}'}")
    lines.append(f"  ret {vector} %r15")
    return [f"declare {vector} @{name}({vector}, {vector})" for name in (shuffle, add)], lines
