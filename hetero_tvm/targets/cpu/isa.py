"""Names of CPUs and of their instructions, as LLVM spells them and as the system does."""

from __future__ import annotations

from hetero_tvm.errors import TargetError
from hetero_tvm.host.tvm import tvm

_CPUINFO_NAME = {
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512fp16": "avx512_fp16",
    "avxvnni": "avx_vnni",
    "amx-tile": "amx_tile",
    "amx-bf16": "amx_bf16",
    "amx-int8": "amx_int8",
    "lzcnt": "abm",
    "bmi": "bmi1",
}
"""LLVM's spelling -> /proc/cpuinfo's, where they differ."""

CODEGEN_FEATURES = (
    "avx",
    "avx2",
    "fma",
    "f16c",
    "bmi",
    "bmi2",
    "lzcnt",
    "popcnt",
    "movbe",
    "sse4.1",
    "sse4.2",
    "avx512f",
    "avx512bw",
    "avx512cd",
    "avx512dq",
    "avx512vl",
    "avx512ifma",
    "avx512vbmi",
    "avx512vbmi2",
    "avx512vnni",
    "avx512bf16",
    "avx512bitalg",
    "avx512vpopcntdq",
    "avx512fp16",
    "avxvnni",
    "amx-tile",
    "amx-bf16",
    "amx-int8",
)
"""Features that code generation may use."""


def cpuinfo_name(name: str) -> str:
    """The name in /proc/cpuinfo of a feature of LLVM's."""
    return _CPUINFO_NAME.get(name, name)


def check_architecture(name: str) -> None:
    """Refuse a microarchitecture that LLVM does not know (:class:`TargetError`)."""
    known = [str(one) for one in tvm.target.codegen.llvm_get_cpu_archlist(tvm.target.Target("llvm"))]
    if name in known:
        return
    from difflib import get_close_matches

    close = get_close_matches(name, known, 3) or known[-5:]
    raise TargetError(f"LLVM knows no CPU {name!r}", hint=f"did you mean {', '.join(close)}?")
