"""Candidates on the emulated GPU: what a broken kernel costs, and what is not measured."""

import pytest

from hetero_tvm.machines.gpu import model_named
from hetero_tvm.search.measure.compile_process import Refused
from hetero_tvm.search.measure.device_client import LocalDevice
from hetero_tvm.search.measure.device_workers import DeviceWorkers
from hetero_tvm.search.measure.service import Job, Limits, contract_spec
from hetero_tvm.targets.cuda import device as gpu_device
from hetero_tvm.targets.cuda import kernel_facts
from tests.search.spaces import Scale
from tests.targets.cuda.gpu_spaces import BadGpuSpace

LIMITS = Limits(build_seconds=60, run_seconds=20, memory=4 << 30)
DEVICE = "CPU emulation of sm_80"


@pytest.mark.exhaustive
def test_a_kernel_that_breaks_the_context_costs_only_itself(emulated):
    device = LocalDevice(gpu_device.DEVICE)
    assert device.open() == {"kind": "cuda", "name": DEVICE, "arch": "sm_80", "capability": 80}
    modes = ["good", "fault", "good", "crash", "good", "wrong", "good"]
    with DeviceWorkers([device], model_named("sm_80"), gpu_device.COMPILE, LIMITS, slots=1) as workers:
        workers.add_task("bad", contract_spec(Scale(2, 64), BadGpuSpace()))
        jobs = [Job("bad", ({"point": {"mode": mode, "repeat": 1, "pieces": 1}},)) for mode in modes]
        results = dict(workers.measure(jobs))
    status = {mode: results[modes.index(mode)][0] for mode in set(modes)}
    assert status["fault"].status == "run_error" and "LaunchFailure" in status["fault"].text
    assert status["crash"].status == "crash" and "SIGSEGV" in status["crash"].text
    assert status["wrong"].status == "wrong_result"
    good = [results[index][0] for index, mode in enumerate(modes) if mode == "good"]
    assert [(result.status, result.text) for result in good] == [("ok", "")] * 4
    assert device.peer.generation == 3  # one process more after each of fault and crash


def test_spilling_candidates_are_not_measured(emulated, monkeypatch, tmp_path):
    kernel = BadGpuSpace().emit(Scale(2, 64), {"mode": "good"}, None).with_attr("global_symbol", "candidate")
    known = {"registers": 255, "stack": 16, "shared": 0, "occupancy": 0.1}
    monkeypatch.setattr(kernel_facts, "of_module", lambda module: {"candidate_kernel": known})
    with pytest.raises(Refused, match="spills: 16 bytes of stack, 255 registers"):
        gpu_device.compile_candidate(kernel, model_named("sm_80"), str(tmp_path / "x.so"))
    known.update(stack=0, occupancy=0, shared=1 << 20)
    with pytest.raises(Refused, match="does not fit"):
        gpu_device.compile_candidate(kernel, model_named("sm_80"), str(tmp_path / "x.so"))
