"""GPUs for tests on machines that have none."""

import pytest

from hetero_tvm.errors import TargetError
from hetero_tvm.runtime.cuda import devices as cuda_runtime
from hetero_tvm.targets.cuda import compilers, toolchain


@pytest.fixture
def emulated(monkeypatch):
    """Kernels are compiled for, and run by, the CPU emulation of a GPU."""
    if cuda_runtime.missing_driver() is None:
        pytest.skip("this machine has an NVIDIA driver: the stand-in for it is not used")
    monkeypatch.setenv(cuda_runtime.EMULATE_VARIABLE, "1")


@pytest.fixture
def compiler(monkeypatch):
    """A compiler of CUDA C++."""
    monkeypatch.delenv(cuda_runtime.EMULATE_VARIABLE, raising=False)
    monkeypatch.setattr(toolchain.Toolchain, "keeps_ptx", True)  # most tests read it
    try:
        return compilers.find()
    except TargetError as error:
        pytest.skip(f"{error.message}: {error.hint}")
