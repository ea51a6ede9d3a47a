"""Static facts of kernels: shared memory and occupancy."""

import pytest

from hetero_tvm.machines.gpu import MODELS
from hetero_tvm.targets.cuda import codegen, kernel_facts
from hetero_tvm.targets.cuda.kernel_facts import occupancy


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
