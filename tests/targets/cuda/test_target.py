"""Target texts, architectures, what is missing, and that nothing unscheduled passes."""

import types

import pytest

from hetero_tvm import build as build_command
from hetero_tvm.errors import BuildError, LibraryError, TargetError
from hetero_tvm.host.tvm import tvm
from hetero_tvm.machines.gpu import MODELS, GpuModel
from hetero_tvm.runtime import tvm_runtime
from hetero_tvm.runtime.cuda import devices as cuda_runtime
from hetero_tvm.targets.cuda import codegen, compilers, kernel_facts, thread_binding, toolchain
from hetero_tvm.targets.cuda.kernel_facts import occupancy
from hetero_tvm.targets.registry import parse_target


def test_architectures():
    target = parse_target("cuda:sm_80,sm_90a")
    assert [variant.machine.arch for variant in target.variants] == ["sm_80", "sm_90a"]
    assert [variant.entry for variant in target.variants] == ["main_sm_80", "main_sm_90a"]
    assert target.describe()["archs"] == ["sm_80", "sm_90a"]
    assert parse_target("cuda: sm_80 , sm_90a,").describe() == target.describe()
    assert parse_target("cuda:sm_86").machine.shared_per_block < target.machine.shared_per_block


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cuda:sm_12", "no architecture 'sm_12'"),
        ("cuda:sm_52", "no architecture 'sm_52'"),
        ("cuda:SM_80", "no architecture 'SM_80'"),
        ("cuda:sm_80;sm_90", "no architecture"),
        ("cuda:sm_80, sm_80", "twice"),
        ("cuda:80", "no architecture"),
        ("cuda:sm_80,sm_80", "twice"),
    ],
)
def test_wrong_architectures(text, message):
    with pytest.raises(TargetError, match=message):
        parse_target(text)


def test_detection_without_a_gpu():
    if cuda_runtime.missing_driver() is None:
        pytest.skip("this machine has an NVIDIA driver")
    with pytest.raises(TargetError, match="GPU: Not found") as caught:
        parse_target("cuda")
    assert "--target cuda:sm_80" in caught.value.hint
    assert "library" not in caught.value.problems[0]  # there is none yet
    lines = parse_target("cuda:sm_80").findings()
    assert "CUDA compiler: " in lines[0] and lines[1].startswith("GPU: Not found (")


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


def test_detection_of_a_gpu(emulated, monkeypatch):
    monkeypatch.setenv("HETERO_TVM_CUDA_EMULATE_ARCH", "86")
    assert parse_target("cuda").machine.arch == "sm_86"


@pytest.mark.parametrize(
    ("archs", "capability", "chosen"),
    [
        (("sm_80", "sm_90"), 80, "sm_80"), (("sm_80", "sm_90"), 89, "sm_80"),
        (("sm_80", "sm_86"), 89, "sm_86"),
        (("sm_90", "sm_90a"), 90, "sm_90a"), (("sm_80",), 90, None), (("sm_90a",), 89, None), ((), 80, None),
    ],
)  # fmt: skip
def test_which_machine_code_a_device_runs(archs, capability, chosen):
    assert cuda_runtime.best_of(archs, capability) == chosen


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
    assert said.err.startswith("error: no CUDA compiler: neither nvcc nor NVRTC was found\n")
    assert said.err.count("What to do: pip install") == 1 and "Traceback" not in said.err
    assert not (tmp_path / "out").exists()


def test_a_compile_error_is_told(compiler):
    with pytest.raises(TargetError, match="does not compile the kernels for sm_80") as caught:
        compiler.cubin('extern "C" __global__ void k(float* x) { x[0] = nonsense; }', "sm_80")
    assert any("nonsense" in problem for problem in caught.value.problems)


def test_approximations_become_full_range_functions():
    assert (
        toolchain.precise("__powf(x, 3.0f) + __sinf(y) + __expf(z)") == "powf(x, 3.0f) + sinf(y) + __expf(z)"
    )


def test_facts_of_a_cubin(compiler):
    from hetero_tvm.targets.cuda import cubin

    source = """extern "C" __global__ void plain(float* x) { x[threadIdx.x] *= 2; }
    extern "C" __global__ void stacked(float* x, int n) {
      __shared__ float s[256]; float a[64];
      for (int i = 0; i < n; ++i) a[(i * n) & 63] = x[i];
      s[threadIdx.x] = a[n & 63]; __syncthreads();
      x[threadIdx.x] = s[255 - threadIdx.x] + a[(n * 7) & 63]; }"""
    kernels = cubin.kernels_of(compiler.cubin(source, "sm_80"))
    assert set(kernels) == {"plain", "stacked"}
    assert kernels["plain"].stack == 0 and kernels["plain"].shared == 0 and kernels["plain"].registers < 32
    assert kernels["stacked"].stack >= 256 and kernels["stacked"].shared == 1024


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_what_the_driver_takes_is_not_the_kernels(arch, compiler):
    """Cubins of compute capability 9.0 count the reserved 1 KB among the shared memory of each kernel."""
    source = """extern "C" __global__ void plain(float* x) { x[threadIdx.x] *= 2; }
    extern "C" __global__ void turned(float* x) { __shared__ float s[128];
      s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); x[threadIdx.x] = s[127 - threadIdx.x]; }"""
    launch = codegen.Launch((1, 1, 1), (128, 1, 1), None, 112 << 10)
    module = codegen.DeviceModule(arch, source, compiler.cubin(source, arch), {"turned": launch})
    found = kernel_facts.of_module(module)
    assert found["plain"]["shared"] == 0 and found["turned"]["shared"] == (112 << 10) + 512
    assert found["turned"]["occupancy"] == (1 if arch == "sm_80" else 2) * 128 / 2048


def test_occupancy():
    """By hand, from the limits of compute capability 8.0: 65536 registers, 2048 threads, 164 KB."""
    model = MODELS["sm_80"]
    assert occupancy(model, 256, 32, 0) == 1.0
    assert occupancy(model, 128, 128, 0) == 4 * 128 / 2048
    assert occupancy(model, 128, 64, 80 << 10) == 2 * 128 / 2048
    assert occupancy(model, 128, 64, 200 << 10) == 0.0


def test_model_survives_json():
    for model in MODELS.values():
        assert GpuModel.from_json(model.to_json()) == model


def test_an_unscheduled_kernel_is_refused():
    from hetero_tvm.host.tvm import te

    a = te.placeholder((64,), "float32", "a")
    function = te.create_prim_func([a, te.compute((64,), lambda i: a[i] + 1, "b")])
    assert not thread_binding.is_bound(function)
    with pytest.raises(BuildError, match="without a schedule") as caught:
        thread_binding.check_bound(tvm.IRModule({"forgotten": function}))
    assert caught.value.problems == ("forgotten",)
    assert thread_binding.is_bound(parse_target("cuda:sm_80").schedule_generic(function))


def test_no_driver_is_a_library_error():
    if cuda_runtime.missing_driver() is None:
        pytest.skip("this machine has an NVIDIA driver")
    with pytest.raises(LibraryError, match="no NVIDIA"):
        cuda_runtime.device()
