"""What is done to CUDA C++ before it is compiled."""

from hetero_tvm.targets.cuda import toolchain


def test_approximations_become_full_range_functions():
    assert (
        toolchain.precise("__powf(x, 3.0f) + __sinf(y) + __expf(z)") == "powf(x, 3.0f) + sinf(y) + __expf(z)"
    )
