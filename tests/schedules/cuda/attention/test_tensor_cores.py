"""Attention on tensor cores: fragments of rows, and what the compiled code is made of."""

import pytest

from hetero_tvm.schedules.cuda.attention.tensor_cores import CudaAttentionSpace
from tests.schedules.cuda.attention.cases import attention
from tests.schedules.cuda.spaces import body_of, check_machine_code, check_numbers, points

HALF = CudaAttentionSpace()
TOLERANCE = 3 * 2.0**-11
"""Relative to the largest result: the weights are rounded to float16, and so is the result."""
DECODE = attention(1, 4096, 128, 32, kv_heads=8)


@pytest.mark.exhaustive
def test_two_fragments_of_rows_a_warp(emulated, pick):
    """Queries in registers and in shared memory, masks, shared heads, rows past the end."""
    ops = [
        attention(150, 170, 64, causal=True),
        attention(70, 100, 128, causal=True),
        attention(90, 130, 20, mask=(1, 1, 90, 130)),
        attention(80, 90, 48, heads=4, kv_heads=1, window=30, causal=True),
    ]
    tiles = [(4, 64, 1, 2), (4, 32, 1, 2), (4, 32, 2, 2), (4, 32, 1, 2)]
    for op, tile in zip(ops, tiles, strict=True):
        assert {"tile": tile} in points(HALF, op)
    cases = [(op, {"tile": tile}, None) for op, tile in zip(ops, tiles, strict=True)]
    check_numbers(HALF, pick(cases, 2), TOLERANCE)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arch", "ops"),
    [
        ("sm_80", (attention(2048, 2048, 64, 16, 4, causal=True), DECODE, attention(512, 512, 256, 8))),
        (
            "sm_90",
            (
                attention(2048, 2048, 128, 16, 4, causal=True),
                attention(128, 128, 32, 12, packed=True, mask=(1, 1, 1, 128)),
                attention(512, 512, 64, 16, dtype="bfloat16", causal=True),
            ),
        ),
    ],
)
def test_compiled_code(arch, ops, compiler):
    module, found = check_machine_code(HALF, [(op, None) for op in ops], arch)
    assert ("f1_kernel_1" in found) == (ops[1] is DECODE)  # the sum of the splits
    ptx = compiler.ptx(module.source, arch)
    for kernel in range(len(ops)):
        body = body_of(ptx, f"f{kernel}_kernel")
        for instruction in (
            "mma.sync.aligned.m16n8k16",
            "ldmatrix.sync.aligned.m8n8.x4.trans",
            "ex2.approx",
            "cp.async.cg",
        ):
            assert instruction in body
        assert "ld.global" not in body.replace("ld.global.nc.f32", "")  # masks alone are not copied
