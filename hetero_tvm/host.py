"""Facts about this machine: cores, instruction set, caches, measured peaks.

Imports neither TVM nor NumPy, so that the command lines and the runtime may ask cheaply.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


# --- cores -----------------------------------------------------------------------------------


def available_cores() -> tuple[int, ...]:
    """Ids of the logical cores that this process may really use, ascending, at least one.

    The affinity mask, cut to the CPU quota of the control groups around this process (both
    versions, every level).  A broken quota is rounded down: threads that spin for one another
    lose more to throttling than the fraction of a core could give.  When the quota takes
    cores away, siblings of a core that is already in the list go first.
    """
    cores = _affinity()
    quota = cpu_quota()
    if quota is None or quota >= len(cores):
        return cores
    count = max(1, int(quota + 1e-6))
    first = _first_siblings(cores)
    ranked = [*first, *(core for core in cores if core not in first)]
    return tuple(sorted(ranked[:count]))


def physical_cores(cores: Sequence[int] | None = None) -> int:
    """How many physical cores stand behind ``cores`` (default: :func:`available_cores`)."""
    return len(_first_siblings(tuple(available_cores() if cores is None else cores)))


def cpu_quota(proc: Path = Path("/proc"), root: Path = Path("/")) -> float | None:
    """The tightest CPU limit of the control groups around this process, in cores, or None.

    ``proc`` and ``root`` stand in for the real trees in tests.
    """
    limits = [_group_limit(folder, version) for folder, version in _cpu_groups(proc, root)]
    return min((limit for limit in limits if limit is not None), default=None)


def _affinity() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _first_siblings(cores: Sequence[int]) -> tuple[int, ...]:
    """The lowest id of each physical core among ``cores``."""
    seen: set[frozenset[int]] = set()
    first = []
    for core in cores:
        text = _read(Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"))
        siblings = frozenset(_parse_list(text)) if text else frozenset({core})
        if siblings not in seen:
            seen.add(siblings)
            first.append(core)
    return tuple(first)


def _parse_list(text: str) -> list[int]:
    """``"0-2,8"`` -> ``[0, 1, 2, 8]``."""
    ids: list[int] = []
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        ids.extend(range(int(low), int(high or low) + 1))
    return ids


def _cpu_groups(proc: Path, root: Path) -> list[tuple[Path, int]]:
    """Folders (with their cgroup version) that may limit this process, leaf to top."""
    mounts: dict[int, tuple[str, Path]] = {}  # version -> (path of the mount in the hierarchy, folder)
    for line in (_read(proc / "self/mountinfo") or "").splitlines():
        fields, _, rest = line.partition(" - ")
        kind, *more = rest.split()
        inner, folder = fields.split()[3:5]
        if kind == "cgroup2":
            mounts.setdefault(2, (inner, root / folder.lstrip("/")))
        elif kind == "cgroup" and "cpu" in more[-1].split(","):
            mounts.setdefault(1, (inner, root / folder.lstrip("/")))
    groups: list[tuple[Path, int]] = []
    for line in (_read(proc / "self/cgroup") or "").splitlines():
        number, controllers, path = line.split(":", 2)
        version = 2 if number == "0" and not controllers else 1
        if version not in mounts or (version == 1 and "cpu" not in controllers.split(",")):
            continue
        inner, folder = mounts[version]
        # In a container the mount may show a subtree only, while the path is the host's.
        if inner != "/" and (path + "/").startswith(inner + "/"):
            path = path[len(inner) :]
        parts = [part for part in path.split("/") if part and part != ".."]
        groups += [(folder.joinpath(*parts[:depth]), version) for depth in range(len(parts), -1, -1)]
    return groups


def _group_limit(folder: Path, version: int) -> float | None:
    try:
        if version == 2:
            quota, period = (folder / "cpu.max").read_text().split()
            if quota == "max":
                return None
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        limit = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
    return limit if limit > 0 else None


# --- instruction set and caches --------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def cpu_features() -> frozenset[str]:
    """Feature flags as the kernel names them (``avx2``, ``fma``, ``avx512f``, ``avx512_vnni``)."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", _cpuinfo(), re.MULTILINE)
    return frozenset(match.group(1).split()) if match else frozenset()


@dataclasses.dataclass(frozen=True)
class Host:
    """What schedules and records need to know of a machine.  Sizes in bytes."""

    model_name: str
    architecture: str
    microarchitecture: str
    """LLVM's name (``znver4``); without LLVM the psABI level (``x86-64-v3``)."""
    features: frozenset[str]
    simd_bits: int
    registers: int
    """Architectural vector registers at ``simd_bits``."""
    fma_units: int
    """FMA instructions of full width per cycle (a guess from the name)."""
    cores: tuple[int, ...]
    l1d: int
    l2: int
    l3: int

    def to_json(self) -> dict[str, Any]:
        """A dict that :mod:`json` can write; :meth:`from_json` reads it back."""
        data = dataclasses.asdict(self)
        return {**data, "features": sorted(self.features), "cores": list(self.cores)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Host:
        return cls(**{**data, "features": frozenset(data["features"]), "cores": tuple(data["cores"])})


@functools.lru_cache(maxsize=1)
def detect() -> Host:
    """The facts of this machine.  Imports TVM to learn LLVM's name of the CPU, when installed."""
    features = cpu_features()
    architecture = platform.machine()
    microarchitecture = _llvm_cpu_name() or _level(features, architecture)
    simd_bits, registers = _vector_unit(features, architecture)
    return Host(
        model_name=_model_name(),
        architecture=architecture,
        microarchitecture=microarchitecture,
        features=features,
        simd_bits=simd_bits,
        registers=registers,
        fma_units=_fma_units(microarchitecture, simd_bits),
        cores=available_cores(),
        **_caches(),
    )


def _llvm_cpu_name() -> str | None:
    try:
        from hetero_tvm._bootstrap import import_tvm

        name = str(import_tvm().target.codegen.llvm_get_system_cpu())
    except Exception:  # a machine that only runs libraries has no compiler, or a stripped one
        return None
    return name if name and name != "generic" else None


def _level(features: frozenset[str], architecture: str) -> str:
    for level, needed in _X86_LEVELS:
        if needed <= features:
            return level
    return "x86-64" if architecture in ("x86_64", "AMD64") else "generic"


def _vector_unit(features: frozenset[str], architecture: str) -> tuple[int, int]:
    """(bits, registers)."""
    if architecture in ("aarch64", "arm64"):
        return 128, 32
    if "avx512f" in features:
        return 512, 32
    return (256, 16) if "avx2" in features else (128, 16)


def _fma_units(microarchitecture: str, simd_bits: int) -> int:
    if simd_bits == 512:
        return 1 if microarchitecture in _ONE_FMA_UNIT_AT_512 else 2
    return 1 if microarchitecture in ("znver1", "btver2") else 2


def _model_name() -> str:
    match = re.search(r"^(?:model name|Hardware)\s*:\s*(.*)$", _cpuinfo(), re.MULTILINE)
    return match.group(1).strip() if match else platform.processor() or "unknown"


def _caches() -> dict[str, int]:
    """``l1d``, ``l2``, ``l3`` as the first core sees them; common sizes where sysfs is silent."""
    sizes = {"l1d": 32 * KIB, "l2": 512 * KIB, "l3": 8 * MIB}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind = _read(index / "level"), _read(index / "type")
        size = re.match(r"(\d+)([KMG]?)", _read(index / "size") or "")
        if not (level and kind and size) or kind.strip() == "Instruction":
            continue
        key = "l1d" if level.strip() == "1" else f"l{level.strip()}"
        if key in sizes:
            sizes[key] = int(size.group(1)) * {"": 1, "K": KIB, "M": MIB, "G": KIB * MIB}[size.group(2)]
    return sizes


@functools.lru_cache(maxsize=1)
def _cpuinfo() -> str:
    return _read(Path("/proc/cpuinfo")) or ""


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None


# --- measured peaks --------------------------------------------------------------------------


def measure_peak(threads: int | None = None) -> float:
    """Measured f32 FMA peak of ``threads`` pinned threads together, in GFLOP/s.

    ``threads`` defaults to one per available core.  Takes about 0.1 s (the first call also
    compiles a small C++ source).  Raises ``NativeBuildError`` without a C++ compiler.
    """
    cores = _cores_for(threads)
    return _peak_library().hetero_peak_gflops(len(cores), _c_ints(cores), 0.012, 6)


def measure_bandwidth(threads: int | None = None) -> float:
    """Measured rate at which ``threads`` pinned threads read main memory together, in GB/s.

    Reads a buffer of four times the last-level cache (64 to 1024 MiB in all).
    """
    cores = _cores_for(threads)
    total = min(max(4 * _caches()["l3"], 64 * MIB), 1024 * MIB)
    return _peak_library().hetero_read_gbytes(len(cores), _c_ints(cores), total // len(cores), 5)


def _cores_for(threads: int | None) -> list[int]:
    cores = available_cores()
    count = len(cores) if threads is None else threads
    if count < 1:
        from hetero_tvm.errors import UsageError

        raise UsageError(f"threads must be at least 1, got {count}")
    return [cores[i % len(cores)] for i in range(count)]


def _c_ints(values: Sequence[int]):
    import ctypes

    return (ctypes.c_int * len(values))(*values)


@functools.lru_cache(maxsize=1)
def _peak_library():
    import ctypes

    from hetero_tvm import native

    path = native.compile_shared(["native_src/peak.cc"], flags=["-O3", "-march=native"], name="peak")
    library = ctypes.CDLL(str(path))
    ints = ctypes.POINTER(ctypes.c_int)
    library.hetero_peak_gflops.restype = ctypes.c_double
    library.hetero_peak_gflops.argtypes = [ctypes.c_int, ints, ctypes.c_double, ctypes.c_int]
    library.hetero_read_gbytes.restype = ctypes.c_double
    library.hetero_read_gbytes.argtypes = [ctypes.c_int, ints, ctypes.c_size_t, ctypes.c_int]
    return library
