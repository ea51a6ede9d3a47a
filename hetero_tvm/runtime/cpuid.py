"""Positions at which ``cpuid`` reports CPU features, for the check that travels inside a library.

Names are those of /proc/cpuinfo.  The check is C++ (see ``cpp/embed.cc.in``), so that C and
C++ programs are protected from illegal instructions as well.
"""

from __future__ import annotations

# The register state that the operating system must save for a feature (bits of XCR0).
_SSE, _AVX, _AVX512, _AMX = 0x0, 0x6, 0xE6, 0x60000

# name -> (leaf, subleaf, register (0 eax, 1 ebx, 2 ecx, 3 edx), bit, state)
FEATURES: dict[str, tuple[int, int, int, int, int]] = {
    "sse": (1, 0, 3, 25, _SSE),
    "sse2": (1, 0, 3, 26, _SSE),
    "pni": (1, 0, 2, 0, _SSE),
    "ssse3": (1, 0, 2, 9, _SSE),
    "cx16": (1, 0, 2, 13, _SSE),
    "sse4_1": (1, 0, 2, 19, _SSE),
    "sse4_2": (1, 0, 2, 20, _SSE),
    "movbe": (1, 0, 2, 22, _SSE),
    "popcnt": (1, 0, 2, 23, _SSE),
    "aes": (1, 0, 2, 25, _SSE),
    "pclmulqdq": (1, 0, 2, 1, _SSE),
    "fma": (1, 0, 2, 12, _AVX),
    "avx": (1, 0, 2, 28, _AVX),
    "f16c": (1, 0, 2, 29, _AVX),
    "abm": (0x80000001, 0, 2, 5, _SSE),
    "lahf_lm": (0x80000001, 0, 2, 0, _SSE),
    "bmi1": (7, 0, 1, 3, _SSE),
    "avx2": (7, 0, 1, 5, _AVX),
    "bmi2": (7, 0, 1, 8, _SSE),
    "adx": (7, 0, 1, 19, _SSE),
    "avx512f": (7, 0, 1, 16, _AVX512),
    "avx512dq": (7, 0, 1, 17, _AVX512),
    "avx512ifma": (7, 0, 1, 21, _AVX512),
    "avx512cd": (7, 0, 1, 28, _AVX512),
    "avx512bw": (7, 0, 1, 30, _AVX512),
    "avx512vl": (7, 0, 1, 31, _AVX512),
    "avx512vbmi": (7, 0, 2, 1, _AVX512),
    "avx512_vbmi2": (7, 0, 2, 6, _AVX512),
    "gfni": (7, 0, 2, 8, _SSE),
    "vaes": (7, 0, 2, 9, _AVX),
    "vpclmulqdq": (7, 0, 2, 10, _AVX),
    "avx512_vnni": (7, 0, 2, 11, _AVX512),
    "avx512_bitalg": (7, 0, 2, 12, _AVX512),
    "avx512_vpopcntdq": (7, 0, 2, 14, _AVX512),
    "avx512_vp2intersect": (7, 0, 3, 8, _AVX512),
    "amx_bf16": (7, 0, 3, 22, _AMX),
    "avx512_fp16": (7, 0, 3, 23, _AVX512),
    "amx_tile": (7, 0, 3, 24, _AMX),
    "amx_int8": (7, 0, 3, 25, _AMX),
    "avx_vnni": (7, 1, 0, 4, _AVX),
    "avx512_bf16": (7, 1, 0, 5, _AVX512),
    "amx_fp16": (7, 1, 0, 21, _AMX),
    "avx_ifma": (7, 1, 0, 23, _AVX),
}
