"""Attention in float32: what the compiled code is made of."""

import pytest

from hetero_tvm.schedules.cuda.attention.float32 import CudaFloatAttentionSpace
from tests.schedules.cuda.attention.cases import attention
from tests.schedules.cuda.running import TARGET
from tests.schedules.cuda.spaces import check_machine_code

SINGLE = CudaFloatAttentionSpace()


@pytest.mark.thorough
def test_compiled_code(compiler):
    ops = [
        attention(128, 128, 64, 12, dtype="float32", packed=True, causal=True, mask=(1, 1, 1, 128)),
        attention(1024, 1024, 128, 16, 4, "float32"),
        attention(256, 256, 512, 1, dtype="float32"),
        attention(1, 2048, 128, 32, kv_heads=8, dtype="float32"),
    ]
    module, _ = check_machine_code(SINGLE, [(op, None) for op in ops])
    ptx = compiler.ptx(module.source, TARGET.machine.arch)
    assert "cp.async.cg" in ptx and "ld.shared.v4" in ptx and "fma.rn.f32" in ptx and "mma" not in ptx
