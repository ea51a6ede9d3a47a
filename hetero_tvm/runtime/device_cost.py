"""Cost of a library's last call on a device that counts its own time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from hetero_tvm.runtime.library import Library
from hetero_tvm.runtime.npu import npu_usage


@dataclass(frozen=True)
class DeviceCost:
    """What a device counted in one call.

    Parameters
    ----------
    kind : kind of the device, as in ``--target``.
    seconds : time on the device by its own clock.
    call_seconds : time on the host inside the device's calls; the rest of a call is kernels on the host.
    counters : counts of the device by name, in the units that the names tell.
    summary : one line for people.
    simulated : whether a simulator stands in for the device, so that wall times say nothing of it.
    """

    kind: str
    seconds: float
    call_seconds: float
    counters: dict[str, Any]
    summary: str
    simulated: bool


def device_cost(library: Library) -> DeviceCost | None:
    """Cost of the last call of a loaded library; None where the wall time of a call is its latency."""
    usage = npu_usage(library)
    if usage is None:
        return None
    device, driver = library.manifest.device, os.environ.get("HNPU_DRIVER")
    name = f"NPU {device.get('npu', {}).get('name', '')} {device.get('precision', '')}"
    counted = f"counted by {driver}" if driver else "simulated"
    summary = (
        f"{name}, {counted}: {usage.cycles:,.0f} cycles, {1e3 * usage.seconds:.3f} ms, "
        f"{1e3 * usage.energy_joule:.3f} mJ, {usage.dram_bytes / 1e6:.2f} MB of DRAM traffic, "
        f"{usage.regions} region{'s' * (usage.regions > 1)}"
    )
    counters = {
        "regions": usage.regions,
        "cycles": usage.cycles,
        "energy_joule": usage.energy_joule,
        "macs": usage.macs,
        "dram_bytes": usage.dram_bytes,
    }
    return DeviceCost("npu", usage.seconds, usage.call_seconds, counters, summary, simulated=not driver)
