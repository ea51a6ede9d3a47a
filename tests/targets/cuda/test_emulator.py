"""The translation of CUDA C++ to host code; its numbers are what all emulated tests stand on."""

import pytest

from hetero_tvm.errors import BuildError
from hetero_tvm.targets.cuda.emulator import translate

START = '#define ushort unsigned short\n#endif\nextern "C" __global__ void k(float* x, int n) {\n'


def test_kernels_get_an_entry_with_the_sizes_of_their_parameters():
    text = translate(START + "  x[n] = 1;\n}\n")
    assert "const int sizes_k[] = {2, (int)sizeof(float*), (int)sizeof(int)};" in text
    assert "k(*(float**)a[0], *(int*)a[1]);" in text


@pytest.mark.parametrize(("body", "fibers"), [("x[n] = 1;", False), ("__syncthreads();", True)])
def test_only_threads_that_meet_get_a_stack_of_their_own(body, fibers):
    text = translate(START + f"  {body}\n}}\n")
    assert f"launch(call_k, a, dims, {str(fibers).lower()})" in text


def test_static_shared_arrays_do_not_overlap():
    arrays = "  __shared__ float a[33];\n  __shared__ half b[7];\n"
    text = translate(START + arrays + "}\n")
    assert "a = (float*)(shared_memory + 0)" in text and "b = (half*)(shared_memory + 256)" in text


def test_an_unknown_instruction_is_refused():
    with pytest.raises(BuildError, match="does not know this instruction"):
        translate(START + '  asm volatile("unknown.op %0;" : "=r"(n));\n}\n')
