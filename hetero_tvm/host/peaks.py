"""Measured peaks: arithmetic and memory bandwidth, the roofs of every comparison."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hetero_tvm.errors import UsageError
from hetero_tvm.host.cores import available_cores
from hetero_tvm.host.cpu import MIB, caches

FLOAT32, INT8, BFLOAT16 = ARITHMETICS = "float32", "int8", "bfloat16"
"""Kinds of arithmetic that have a peak of their own."""


def measure_peak(threads: int | None = None, arithmetic: str = FLOAT32) -> float:
    """Measure the peak of ``threads`` pinned threads together, in GFLOP/s.

    ``threads`` defaults to one per available core.  Takes about 0.1 s (the first call also
    compiles a small C++ source).  Raises ``NativeBuildError`` without a C++ compiler.

    Parameters
    ----------
    arithmetic : ``float32`` multiply-adds; ``int8`` or ``bfloat16`` products with 32-bit sums, which are
        float32's where the machine has no faster instructions for them.
    """
    if arithmetic not in ARITHMETICS:
        raise UsageError(f"no peak of {arithmetic!r}", hint=f"known: {', '.join(ARITHMETICS)}")
    cores = _cores_for(threads)

    def measure(kind: str) -> float:
        number = ARITHMETICS.index(kind)
        return _peak_library().hetero_peak_gflops(len(cores), _c_ints(cores), 0.012, 6, number)

    # Some Xeons take longer for a pair of bfloat16 in vectors than for two floats.
    return measure(FLOAT32) if arithmetic == FLOAT32 else max(measure(arithmetic), measure(FLOAT32))


def measure_bandwidth(threads: int | None = None) -> float:
    """Measure the rate at which ``threads`` pinned threads read main memory together, in GB/s.

    Reads a buffer of four times the last-level cache (64 to 1024 MiB in all).
    """
    cores = _cores_for(threads)
    total = min(max(4 * caches()["l3"], 64 * MIB), 1024 * MIB)
    return _peak_library().hetero_read_gbytes(len(cores), _c_ints(cores), total // len(cores), 5, 1)


@dataclass(frozen=True)
class CacheRoof:
    """Roof of operands that lie in the caches of a machine.

    Parameters
    ----------
    nbytes : size of the last one; what is larger comes from memory.
    gbs : GB/s at which all threads together read their second caches.
    """

    nbytes: int
    gbs: float

    def keeps(self, weights: Iterable[tuple[int, float]]) -> bool:
        """Whether weights stay in the cache from one call of a model to the next.

        Parameters
        ----------
        weights : bytes of a kernel's weights, and its calls: each call has weights of its own.
        """
        return sum(nbytes * calls for nbytes, calls in weights) <= self.nbytes


def measure_caches(threads: int | None = None) -> CacheRoof:
    """Measure the rate at which ``threads`` pinned threads read data that half fills the second cache."""
    cores, sizes = _cores_for(threads), caches()
    part = sizes["l2"] // 2
    gbs = _peak_library().hetero_read_gbytes(len(cores), _c_ints(cores), part, 6, max(1, 32 * MIB // part))
    return CacheRoof(max(sizes["l3"], sizes["l2"]), gbs)


def least_seconds(
    flops: float,
    nbytes: int,
    weight_bytes: int,
    peak_gflops: float,
    bandwidth_gbs: float,
    cached: CacheRoof | None = None,
) -> float:
    """Least seconds that work with ``flops`` operations on ``nbytes`` bytes can take.

    Parameters
    ----------
    weight_bytes : those of ``nbytes`` that come from memory at every call.  The others, which kernels pass on
        to each other, may lie in a cache where they fit.
    cached : what caches deliver; None: everything comes from memory.
    """
    arithmetic = flops / (peak_gflops * 1e9)
    if cached is None or nbytes > cached.nbytes:
        return max(arithmetic, nbytes / (bandwidth_gbs * 1e9))
    from_memory, from_caches = weight_bytes / bandwidth_gbs, nbytes / max(cached.gbs, bandwidth_gbs)
    return max(arithmetic, from_memory * 1e-9, from_caches * 1e-9)


def _cores_for(threads: int | None) -> list[int]:
    """Core of each thread; cores serve again when there are fewer."""
    cores = available_cores()
    count = len(cores) if threads is None else threads
    if count < 1:
        raise UsageError(f"threads must be at least 1, got {count}")
    return [cores[i % len(cores)] for i in range(count)]


def _c_ints(values: Sequence[int]) -> ctypes.Array[ctypes.c_int]:
    return (ctypes.c_int * len(values))(*values)


@functools.lru_cache(maxsize=1)
def _peak_library() -> ctypes.CDLL:
    from hetero_tvm.host import native  # brings much that facts alone do not need

    path = native.compile_shared(["host/cpp/peak.cc"], flags=["-O3", "-march=native"], name="peak")
    library = ctypes.CDLL(str(path))
    ints = ctypes.POINTER(ctypes.c_int)
    library.hetero_peak_gflops.restype = ctypes.c_double
    library.hetero_peak_gflops.argtypes = [ctypes.c_int, ints, ctypes.c_double, ctypes.c_int, ctypes.c_int]
    library.hetero_read_gbytes.restype = ctypes.c_double
    library.hetero_read_gbytes.argtypes = [ctypes.c_int, ints, ctypes.c_size_t, ctypes.c_int, ctypes.c_int]
    return library
