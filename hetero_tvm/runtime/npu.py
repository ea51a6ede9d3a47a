"""Libraries for an NPU, whose driver counts what a call costs; needs no compiler."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hetero_tvm.runtime.library import Library
from hetero_tvm.runtime.manifest import Manifest
from hetero_tvm.runtime.observing import DeviceCost
from hetero_tvm.runtime.registry import profiler
from hetero_tvm.runtime.threads import ThreadPinning


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


class NpuLibrary(Library):
    """A library whose regions run on an NPU, or on the simulator behind its driver interface."""

    def device_cost(self) -> DeviceCost | None:
        usage = npu_usage(self)
        if usage is None:
            return None
        device, driver = self.manifest.device, os.environ.get("HNPU_DRIVER")
        name = f"NPU {device.get('npu', {}).get('name', '')} {device.get('precision', '')}"
        counted = f"counted by {driver}" if driver else "simulated"
        summary = (
            f"{name}, {counted}: {usage.cycles:,.0f} cycles, {1e3 * usage.seconds:.3f} ms, "
            f"{1e3 * usage.energy_joule:.3f} mJ, {usage.dram_bytes / 1e6:.2f} MB of DRAM traffic, "
            f"{usage.regions} region{'s' * (usage.regions > 1)}"
        )
        counters = asdict(usage)
        seconds, call_seconds = counters.pop("seconds"), counters.pop("call_seconds")
        return DeviceCost("npu", seconds, call_seconds, counters, summary, simulated=not driver)

    def profile_call(self, call: Callable[[], Any], seconds: float = 1.0) -> Any:
        return profiler("npu")(self, call)


def open_library(
    path: Path, manifest: Manifest, pinning: ThreadPinning, device: int, cuda_graph: bool | None
) -> NpuLibrary:
    """Open a library for an NPU; its driver is inside, so that it runs on any host."""
    return NpuLibrary(path, manifest, pinning)
