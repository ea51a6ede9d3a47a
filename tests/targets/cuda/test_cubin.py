"""Facts that a cubin holds."""


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
