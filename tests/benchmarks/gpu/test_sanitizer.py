"""Kernels under compute-sanitizer: reports name their kernel, and one that ends the process stops nothing."""

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from benchmarks.gpu import sanitizer, smoke, tensors
from benchmarks.gpu.measure import LIMITS
from benchmarks.gpu.results_file import ResultsFile
from benchmarks.gpu.sections import section_named
from hetero_tvm.search.measure.device_workers import DeviceWorkers
from hetero_tvm.targets.registry import parse_target

OUT_OF_BOUNDS = """========= COMPUTE-SANITIZER
hetero_tvm kernel softmax_5x100 default
hetero_tvm kernel matmul last
========= Invalid __global__ write of size 4 bytes
=========     at matmul_kernel+0x30
=========     by thread (3,0,0) in block (0,0,0)
========= Program hit unspecified launch failure (error 719)
hetero_tvm kernel norm default
========= ERROR SUMMARY: 2 errors
"""

FAKE = """
import json, sys
request = json.load(open(sys.argv[-1]))
for one in request["kernels"]:
    print("hetero_tvm kernel " + one["name"], flush=True)
    if one["name"] == "bad":
        print("========= Error: Race reported between Write access at a and Read access at b", flush=True)
    if one["name"] == "dies":
        sys.exit(7)
"""


def test_reports_belong_to_the_kernel_before_them():
    assert sanitizer.parse(OUT_OF_BOUNDS) == {
        "softmax_5x100 default": [],
        "matmul last": [
            "Invalid __global__ write of size 4 bytes",
            "Program hit unspecified launch failure (error 719)",
        ],
        "norm default": [],
    }


def watched(*names, code=FAKE):
    kernels = [{"name": name} for name in names]
    return sanitizer.watch([sys.executable, "-c", code], kernels, "sm_90a", 30.0)


def test_all_is_well():
    assert watched("a", "b") == {"status": "ok", "checked": 2, "asked": 2, "reports": {}}


def test_kernels_behind_one_that_ends_the_process_are_checked():
    found = watched("a", "dies", "bad", "b")
    assert found["status"] == "wrong" and found["checked"] == 4
    assert list(found["reports"]) == ["dies", "bad"]
    assert found["reports"]["dies"][0].startswith("exit status 7") and "bad: Error: Race" in found["why"]


def test_a_tool_that_does_not_start_is_told():
    found = watched("a", code="import sys; print('no such option'); sys.exit(2)")
    assert (found["status"], found["checked"]) == ("failed", 0) and "no such option" in found["why"]


@pytest.mark.parametrize(
    ("on_cpu", "why"), [(False, "compute-sanitizer is not installed"), (True, "the CPU emulation")]
)
def test_it_says_so_where_it_cannot_run(monkeypatch, capsys, on_cpu, why):
    monkeypatch.setattr(tensors, "EMULATED", on_cpu)
    monkeypatch.setattr(sanitizer, "find", lambda: None)
    results = ResultsFile(None, {"device": {"name": "GPU"}}, 5)
    sanitizer.smoke(lambda: pytest.fail("nothing needs compiling"), "sm_90a", results)
    assert [entry["status"] for entry in results.entries("smoke")] == ["refused", "refused"]
    assert why in capsys.readouterr().err


def test_it_is_found_on_the_path(tmp_path, monkeypatch):
    program = tmp_path / "compute-sanitizer"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sanitizer.find() == str(program)


@pytest.mark.exhaustive
def test_the_process_launches_compiled_points(emulated):
    """On the emulated GPU, without a tool around it."""
    target = parse_target("cuda")
    points, _ = smoke.smoke_points([section_named("group_norm")], target, more=False)
    with DeviceWorkers([], target.machine, target.device_door.compiler, LIMITS, slots=1) as workers:
        kernels = smoke._compiled(points, SimpleNamespace(workers=workers, target=target))
        found = sanitizer.watch(["env"], kernels, target.machine.arch, 60.0)
    assert found == {"status": "ok", "checked": 2, "asked": 2, "reports": {}}
