"""Facts on the GPU and the machine around it, as the results name them."""

from __future__ import annotations

import os
import platform
import subprocess
from typing import Any

# fmt: off
FIELDS = (
    "name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.limit",
    "power.draw", "temperature.gpu", "memory.total", "clocks_throttle_reasons.active",
)
# fmt: on


def smi(fields: tuple[str, ...] = FIELDS) -> dict[str, str]:
    """Answer of ``nvidia-smi`` on the first GPU; {} where there is no such program or it knows none."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "-i", "0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in done.stdout.strip().splitlines()[0].split(",")]
    return dict(zip(fields, values, strict=False))


def facts() -> dict[str, Any]:
    """Facts on this machine: GPU, clocks, driver, versions, cores.  Works without a GPU too (emulation)."""
    import torch

    from hetero_tvm.runtime.cuda import devices as cuda_runtime
    from hetero_tvm.targets.cuda import compilers

    found = cuda_runtime.device()
    compiler = compilers.find()
    result: dict[str, Any] = {
        "name": found.name,
        "capability": found.capability,
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "compiler": f"{compiler.name} {compiler.release}",
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
    }
    if not cuda_runtime.emulating():
        result |= {"smi": smi(), **_properties(torch)}
    return result


def _properties(torch: Any) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    names = ("multi_processor_count", "total_memory", "L2_cache_size", "shared_memory_per_block_optin")
    cudnn = torch.backends.cudnn.version()
    known = {name: getattr(properties, name) for name in names if hasattr(properties, name)}
    try:
        import triton

        known["triton"] = triton.__version__
    except ImportError:
        pass
    return {**known, "cudnn": cudnn}


class Sensor:
    """Reader of clocks and power while something runs; says nothing where NVML cannot be had."""

    def __init__(self) -> None:
        self._nvml: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            self._nvml = pynvml
        except Exception:  # not installed, or no driver: NVML raises errors of its own
            pass

    def read(self) -> dict[str, Any]:
        if self._nvml is None:
            return {}
        nvml = self._nvml
        values = {
            "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM),
            "mem_mhz": lambda: nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_MEM),
            "watts": lambda: nvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3,
            "celsius": lambda: nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU),
            "throttled": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle),
        }
        found = {}
        for name, value in values.items():
            try:
                found[name] = value()
            except Exception:  # a field that this product or container does not tell
                continue
        return found
