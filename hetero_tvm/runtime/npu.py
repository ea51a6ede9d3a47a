"""What the last call of a library cost on its NPU; needs no compiler."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any


class _Use(ctypes.Structure):
    _fields_ = [
        ("cycles", ctypes.c_double), ("seconds", ctypes.c_double), ("call_seconds", ctypes.c_double),
        ("joule", ctypes.c_double), ("macs", ctypes.c_double), ("dram_bytes", ctypes.c_uint64),
    ]  # fmt: skip


@dataclass(frozen=True)
class NpuUse:
    """All NPU regions of a library's last call together, as the driver counted.

    Parameters
    ----------
    cycles, seconds : of the NPU, by its own clock (simulated, unless ``HNPU_DRIVER`` names hardware).
    call_seconds : time of the host within the calls of regions; behind the simulator most of it computes
        numbers.
    """

    regions: int
    cycles: float
    seconds: float
    call_seconds: float
    energy_joule: float
    macs: float
    dram_bytes: int


def npu_use(library: Any) -> NpuUse | None:
    """Of a loaded :class:`~hetero_tvm.runtime.Library`; None when it has no NPU regions that have run."""
    loaded = ctypes.CDLL(str(library.loaded_path))
    if not hasattr(loaded, "hetero_npu_profile_use"):
        return None
    raw = _Use()
    regions = loaded.hetero_npu_profile_use(ctypes.byref(raw))
    if not regions:
        return None
    return NpuUse(regions, raw.cycles, raw.seconds, raw.call_seconds, raw.joule, raw.macs, raw.dram_bytes)
