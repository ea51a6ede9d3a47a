"""Cost of a library's last call on its NPU, as the driver counted it; needs no compiler."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from hetero_tvm.runtime.library import Library


class _CUsage(ctypes.Structure):
    """``hetero_npu_use`` of ``targets/npu/cpp/npu_region.h``, field by field."""

    # fmt: off
    _fields_ = [
        ("cycles", ctypes.c_double), ("seconds", ctypes.c_double), ("call_seconds", ctypes.c_double),
        ("joule", ctypes.c_double), ("macs", ctypes.c_double), ("dram_bytes", ctypes.c_uint64),
    ]
    # fmt: on


@dataclass(frozen=True)
class NpuUsage:
    """Sums over all NPU regions that a library's last call ran.

    Parameters
    ----------
    regions : number of regions that ran.
    cycles, seconds : time on the NPU by its own clock (simulated, unless ``HNPU_DRIVER`` names hardware).
    call_seconds : time on the host inside the calls of regions; behind the simulator most of it computes
        numbers.
    energy_joule : energy of the NPU and its memory, in joules.
    macs : multiply-accumulate operations.
    dram_bytes : bytes moved between the NPU and its DRAM.
    """

    regions: int
    cycles: float
    seconds: float
    call_seconds: float
    energy_joule: float
    macs: float
    dram_bytes: int


def npu_usage(library: Library) -> NpuUsage | None:
    """Read the counters of the last call of a loaded library; None when none of its regions has run."""
    loaded = ctypes.CDLL(str(library.loaded_path))
    if not hasattr(loaded, "hetero_npu_profile_use"):
        return None
    raw = _CUsage()
    regions = loaded.hetero_npu_profile_use(ctypes.byref(raw))
    if not regions:
        return None
    return NpuUsage(regions, raw.cycles, raw.seconds, raw.call_seconds, raw.joule, raw.macs, raw.dram_bytes)
