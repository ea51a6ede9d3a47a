"""What is done to CUDA C++ before it is compiled."""

from hetero_tvm.targets.cuda import toolchain


def test_approximations_become_full_range_functions():
    source = toolchain.precise("__powf(x, 3.0f) + __sinf(y) + __expf(z)")
    assert source.endswith("}\npowf(x, 3.0f) + sinf(y) + __expf(z)")


def test_extremes_keep_nan():
    source = f"{toolchain._START}\n#endif\ny = max(a, fmaxf(b, min(c, d))); z = __hmax(e, f); w = x.max(g);"
    kernels = toolchain.precise(source).partition(toolchain._START)[2]
    assert "nan_max(a, fmaxf(b, nan_min(c, d)))" in kernels
    assert "nan_max(e, f)" in kernels and "x.max(g)" in kernels


def test_extremes_are_one_instruction(compiler):
    source = f"""{toolchain._START}
    extern "C" __global__ void largest(float* a, const float* b) {{
      a[0] = max(max(a[0], b[0]), min(b[1], 2.0f));
    }}"""
    assert compiler.ptx(source, "sm_80").count("max.NaN.f32") == 2
    assert compiler.cubin(source, "sm_90")
