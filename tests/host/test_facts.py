"""Facts of this machine, and of another kind."""

import dataclasses
import json
import platform
import subprocess
import sys

import pytest

from hetero_tvm import host
from hetero_tvm.host import cpu, facts


def test_detect_is_json_and_complete():
    here = host.detect()
    assert host.Host.from_json(json.loads(json.dumps(here.to_json()))) == here
    assert here.cores == host.available_cores()
    assert here.simd_bits in (128, 256, 512) and here.registers in (16, 32)
    assert 4096 < here.l1d <= here.l2 <= here.l3
    assert here.microarchitecture and here.model_name
    with pytest.raises(dataclasses.FrozenInstanceError):
        here.l1d = 1


def test_an_arm_machine_does_not_crash(monkeypatch):
    text = "processor : 0\nFeatures\t: fp asimd aes\nCPU part\t: 0xd40\n"
    monkeypatch.setattr(cpu, "_cpuinfo", lambda: text)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(facts, "_llvm_cpu_name", lambda: None)
    cpu.cpu_features.cache_clear()
    try:
        arm = host.detect.__wrapped__()
        assert (arm.simd_bits, arm.registers, arm.microarchitecture) == (128, 32, "generic")
        assert "asimd" in arm.features
    finally:
        cpu.cpu_features.cache_clear()


def test_importing_it_is_cheap():
    script = "import sys, hetero_tvm.host; print({'numpy', 'tvm', 'torch'} & set(sys.modules))"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "set()"
