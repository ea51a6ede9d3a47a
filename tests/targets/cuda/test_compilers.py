"""Compilers of CUDA C++: which one is taken, and errors that say what to do."""

import pytest

from hetero_tvm import build as build_command
from hetero_tvm.errors import TargetError
from hetero_tvm.runtime.cuda import devices as cuda_runtime
from hetero_tvm.targets.cuda import compilers


def test_no_compiler(monkeypatch):
    monkeypatch.delenv(cuda_runtime.EMULATE_VARIABLE, raising=False)
    for finder in ("find_nvcc", "find_nvrtc"):
        monkeypatch.setattr(compilers, finder, lambda: None)
    with pytest.raises(TargetError, match="no CUDA compiler") as caught:
        compilers.find()
    assert "pip install nvidia-cuda-nvrtc" in caught.value.hint
    monkeypatch.setenv(compilers.COMPILER_VARIABLE, "/nowhere/nvcc")
    with pytest.raises(TargetError, match="no such program"):
        compilers.find()


def test_the_command_without_a_compiler_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv(cuda_runtime.EMULATE_VARIABLE, raising=False)
    for finder in ("find_nvcc", "find_nvrtc"):
        monkeypatch.setattr(compilers, finder, lambda: None)
    arguments = ["zoo:minilm-l6-tiny", "--target", "cuda:sm_80", "--out", str(tmp_path / "out")]
    assert build_command.main([*arguments, "--logs", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert "CUDA compiler: Not found (pip install nvidia-cuda-nvrtc" in said.out
    assert "\nerror: no CUDA compiler: neither nvcc nor NVRTC was found\n" in said.err
    assert said.err.count("What to do: pip install") == 1 and "Traceback" not in said.err
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_a_compile_error_is_told(compiler):
    with pytest.raises(TargetError, match="does not compile the kernels for sm_80") as caught:
        compiler.cubin('extern "C" __global__ void k(float* x) { x[0] = nonsense; }', "sm_80")
    assert any("nonsense" in problem for problem in caught.value.problems)
