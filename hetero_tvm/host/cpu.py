"""The CPU as the kernel describes it: instruction set, vector unit, caches."""

from __future__ import annotations

import ctypes
import errno
import functools
import platform
import re
from pathlib import Path

from hetero_tvm.host.cores import read_text

KIB = 1024
MIB = 1024 * KIB

# (level, flags in /proc/cpuinfo naming): the psABI levels, best first, for when LLVM is absent.
_X86_LEVELS = (
    ("x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ("x86-64-v3", {"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"}),
    ("x86-64-v2", {"sse4_2", "ssse3", "popcnt", "cx16"}),
)

# One 512-bit FMA per cycle: these split or share the unit (everything else is taken to have two).
_ONE_FMA_UNIT_AT_512 = {"znver4", "icelake-client", "tigerlake", "rocketlake", "cannonlake"}

_SERVERS_ALONE = {"avx512_fp16", "amx_tile", "amx_bf16", "amx_int8"}
"""Features that no core with one unit has."""
_SERVERS = re.compile(r"^model name\s*:.*\bXeon\b.*$", re.MULTILINE)
_ONE_UNIT_XEONS = re.compile(r"^model name\s*:.*\bXeon\(R\) (?:E-|W-1|D-17|D-18).*$", re.MULTILINE)
"""Xeons with the cores of a desktop."""
_ZEN5_FAMILY, _NARROW_ZEN5 = 26, (1, 3)
"""Models of Zen 5 for laptops, by blocks of 32: a 512-bit operation takes a unit of theirs twice."""


_RAPIDS = ("sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d", "diamondrapids")
"""LLVM's names of Xeons with AMX."""

_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
"""Number of the system call; ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA of Linux's ``asm/prctl.h``."""


@functools.lru_cache(maxsize=1)
def cpu_features() -> frozenset[str]:
    """Feature flags as the kernel names them (``avx2``, ``fma``, ``avx512f``, ``avx512_vnni``); those of AMX
    only where this process may use tiles, which it asks for here."""
    shown = _shown_features()
    if "amx_tile" in shown and not tiles_are_permitted():
        return frozenset(name for name in shown if not name.startswith("amx_"))
    return shown


def withheld_features() -> frozenset[str]:
    """Features of this CPU that the operating system keeps from this process."""
    return _shown_features() - cpu_features()


def _shown_features() -> frozenset[str]:
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", _cpuinfo(), re.MULTILINE)
    return frozenset(match.group(1).split()) if match else frozenset()


def tiles_are_permitted() -> bool:
    """Whether the operating system lets this process use AMX's tiles; a sandbox may not."""
    return refusal_of_tiles() is None


def refusal_of_tiles() -> str | None:
    """Reason that the operating system keeps AMX's tiles from this process; None where it permits them."""
    try:
        call = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return "no system call can be made"
    call.argtypes, call.restype = (ctypes.c_long,) * 3, ctypes.c_long
    if call(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0:
        return None
    if ctypes.get_errno() == errno.ENOSPC:
        return "the signal stack of a thread (sigaltstack) is too small for the registers of tiles"
    return "the operating system does not let this process use tiles"


def shown_as(name: str, features: frozenset[str]) -> str:
    """LLVM's name of the microarchitecture that ``features`` belong to, where ``name`` cannot be it.

    LLVM goes by the number of the model, and a hypervisor may show that of a laptop: code for it would have
    neither bfloat16 nor tiles.
    """
    if "avx512_fp16" not in features or not name or name in _RAPIDS or name.startswith("znver"):
        return name
    return "graniterapids" if "amx_fp16" in features else "sapphirerapids"


def psabi_level(features: frozenset[str], architecture: str) -> str:
    """Highest level of the x86-64 psABI that ``features`` cover (``x86-64-v3``), else ``generic``."""
    for level, needed in _X86_LEVELS:
        if needed <= features:
            return level
    return "x86-64" if architecture in ("x86_64", "AMD64") else "generic"


def vector_unit(features: frozenset[str], architecture: str) -> tuple[int, int]:
    """(bits, architectural registers) of the widest vector unit."""
    if architecture in ("aarch64", "arm64"):
        return 128, 32
    if "avx512f" in features:
        return 512, 32
    return (256, 16) if "avx2" in features else (128, 16)


def fma_units_of(
    microarchitecture: str, simd_bits: int, features: frozenset[str] = frozenset(), cpuinfo: str = ""
) -> int:
    """FMA instructions of ``simd_bits`` per cycle.

    From the name of the microarchitecture, but where ``features`` or the text of /proc/cpuinfo know better: a
    hypervisor hides features by which LLVM tells a server's cores from a laptop's, which have one unit less,
    and cores of one name differ in the width of their units.
    """
    if simd_bits != 512:
        return 1 if microarchitecture in ("znver1", "btver2") else 2
    if features & _SERVERS_ALONE or _SERVERS.search(cpuinfo) and not _ONE_UNIT_XEONS.search(cpuinfo):
        return 2
    family, model = (_number(cpuinfo, name) for name in ("cpu family", "model"))
    if family == _ZEN5_FAMILY and model is not None and model >> 5 in _NARROW_ZEN5:
        return 1
    return 1 if microarchitecture in _ONE_FMA_UNIT_AT_512 else 2


def here_fma_units(microarchitecture: str, simd_bits: int) -> int:
    """FMA instructions of ``simd_bits`` per cycle of this machine's cores."""
    return fma_units_of(microarchitecture, simd_bits, cpu_features(), _cpuinfo())


def _number(cpuinfo: str, name: str) -> int | None:
    match = re.search(rf"^{name}\s*:\s*(\d+)\s*$", cpuinfo, re.MULTILINE)
    return int(match.group(1)) if match else None


def model_name() -> str:
    """Name of the CPU as its maker wrote it."""
    match = re.search(r"^(?:model name|Hardware)\s*:\s*(.*)$", _cpuinfo(), re.MULTILINE)
    return match.group(1).strip() if match else platform.processor() or "unknown"


def caches() -> dict[str, int]:
    """Bytes of ``l1d``, ``l2``, ``l3`` as the first core sees them; common sizes where sysfs is silent."""
    sizes = {"l1d": 32 * KIB, "l2": 512 * KIB, "l3": 8 * MIB}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind = read_text(index / "level"), read_text(index / "type")
        size = re.match(r"(\d+)([KMG]?)", read_text(index / "size") or "")
        if not (level and kind and size) or kind.strip() == "Instruction":
            continue
        key = "l1d" if level.strip() == "1" else f"l{level.strip()}"
        if key in sizes:
            sizes[key] = int(size.group(1)) * {"": 1, "K": KIB, "M": MIB, "G": KIB * MIB}[size.group(2)]
    return sizes


@functools.lru_cache(maxsize=1)
def _cpuinfo() -> str:
    return read_text(Path("/proc/cpuinfo")) or ""
