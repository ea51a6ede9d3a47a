"""GPUs of a machine: drivers that are missing or too old, and which machine code a GPU runs."""

import types

import pytest

from hetero_tvm.errors import LibraryError
from hetero_tvm.runtime import tvm_runtime
from hetero_tvm.runtime.cuda import devices as cuda_runtime


def test_a_driver_that_is_too_old_is_told(emulated, monkeypatch):
    def fail():
        raise RuntimeError("CUDA Runtime Error: cudaErrorInsufficientDriver (35): CUDA driver version is ...")

    cuda_runtime.start()
    runtime = types.SimpleNamespace(function=lambda name: fail, ffi=tvm_runtime.start().ffi)
    monkeypatch.setattr(tvm_runtime, "start", lambda: runtime)
    with pytest.raises(LibraryError, match="driver is too old") as caught:
        cuda_runtime.device()
    assert "apt-get install nvidia-driver" in caught.value.hint
    assert "InsufficientDriver" in caught.value.problems[0]


@pytest.mark.parametrize(
    ("archs", "capability", "chosen"),
    [
        (("sm_80", "sm_90"), 80, "sm_80"),
        (("sm_80", "sm_90"), 89, "sm_80"),
        (("sm_80", "sm_86"), 89, "sm_86"),
        (("sm_90", "sm_90a"), 90, "sm_90a"),
        (("sm_80",), 90, None),
        (("sm_90a",), 89, None),
        ((), 80, None),
    ],
)
def test_which_machine_code_a_device_runs(archs, capability, chosen):
    assert cuda_runtime.best_of(archs, capability) == chosen


def test_no_driver_is_a_library_error():
    if cuda_runtime.missing_driver() is None:
        pytest.skip("this machine has an NVIDIA driver")
    with pytest.raises(LibraryError, match="no NVIDIA"):
        cuda_runtime.device()
