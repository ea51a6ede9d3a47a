"""Clocks and driver of the GPU, as far as they can be read."""

import os
import sys
import types

from benchmarks.gpu import device_info


def test_nvidia_smi(tmp_path, monkeypatch):
    assert device_info.smi(("name",)) == {} or "name" in device_info.smi(("name",))
    program = tmp_path / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\n[ "$2" = "--format=csv,noheader" ] && echo "NVIDIA H200, 580.159.04, 1980 MHz"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = device_info.smi(("name", "driver_version", "clocks.sm"))
    assert found == {"name": "NVIDIA H200", "driver_version": "580.159.04", "clocks.sm": "1980 MHz"}
    program.write_text("#!/bin/sh\necho 'No devices were found' >&2; exit 6\n")
    assert device_info.smi() == {}


def test_the_sensor_tells_what_it_can(monkeypatch):
    def refused(*arguments):
        raise RuntimeError("not supported here")

    nvml = types.SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: "gpu",
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetClockInfo=lambda gpu, kind: {1: 1980, 2: 3201}[kind],
        nvmlDeviceGetPowerUsage=lambda gpu: 512_000,
        nvmlDeviceGetTemperature=refused,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda gpu: 4,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert device_info.Sensor().read() == {"sm_mhz": 1980, "mem_mhz": 3201, "watts": 512.0, "throttled": 4}
    nvml.nvmlInit = refused
    assert device_info.Sensor().read() == {}
