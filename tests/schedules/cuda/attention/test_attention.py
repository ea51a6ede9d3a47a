"""Fused attention: numbers on the emulated GPU, and what the compiled code is made of."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.machines.gpu import MODELS
from hetero_tvm.schedules.cuda.attention import shapes as attention_shapes
from hetero_tvm.schedules.cuda.attention.float32 import CudaFloatAttentionSpace
from hetero_tvm.schedules.cuda.attention.tensor_cores import CudaAttentionSpace
from hetero_tvm.targets.registry import parse_target
from tests.schedules.cuda.attention.cases import attention, forms
from tests.schedules.cuda.running import MACHINE, TARGET, compiled
from tests.schedules.cuda.spaces import body_of, check_machine_code, check_numbers, points, random_arrays
from tests.selection import exhaustive

HALF, SINGLE = CudaAttentionSpace(), CudaFloatAttentionSpace()
SPACES = {"float16": HALF, "bfloat16": HALF, "float32": SINGLE}
TOLERANCES = {
    "float16": 3 * 2.0**-11,  # the weights are rounded to the dtype, and so is the result
    "bfloat16": 3 * 2.0**-8,
    "float32": 2e-6,  # sums of up to 256 products, and exponentials of 2 units in the last place
}
"""Relative to the largest result."""
DECODE = attention(1, 4096, 128, 32, kv_heads=8)
# The kernels differ in what multiplies; forms are read by code that they share.
PORTION = {"float16": slice(0, None, 2), "bfloat16": slice(3, 22, 6), "float32": slice(1, None, 2)}


def check(dtype, cases):
    check_numbers(SPACES[dtype], cases, TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", ["float16", *exhaustive(["bfloat16", "float32"])])
def test_forms(dtype, emulated):
    check(dtype, [(op, None, None) for op in forms(dtype)[PORTION[dtype]]])


@pytest.mark.parametrize("dtype", ["float32", *exhaustive(["float16"])])
def test_choices(dtype, emulated):
    op = attention(70, 150, 20, dtype=dtype, causal=True)  # rows, keys and columns that fill no tile
    every = points(SPACES[dtype], op)
    picked = every[:: len(every) // 4]
    assert len({point["tile"][2:] for point in picked}) > 1
    check(dtype, [(op, point, None) for point in picked])


def test_two_fragments_of_rows_a_warp(emulated):
    """Queries in registers and in shared memory, masks, shared heads, rows past the end."""
    ops = [
        attention(150, 170, 64, causal=True), attention(70, 100, 128, causal=True),
        attention(90, 130, 20, mask=(1, 1, 90, 130)),
        attention(80, 90, 48, heads=4, kv_heads=1, window=30, causal=True),
    ]  # fmt: skip
    tiles = [(4, 64, 1, 2), (4, 32, 1, 2), (4, 32, 2, 2), (4, 32, 1, 2)]
    for op, tile in zip(ops, tiles, strict=True):
        assert {"tile": tile} in points(HALF, op)
    check("float16", [(op, {"tile": tile}, None) for op, tile in zip(ops, tiles, strict=True)])


@pytest.mark.parametrize(("dtype", "dims"), [("float16", (200,)), ("float32", (256, 512))])
def test_large_heads(dtype, dims, emulated):
    check(dtype, [(attention(9, 40, dim, 1, dtype=dtype, causal=True), None, None) for dim in dims])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_masks_of_minus_infinity(dtype, emulated):
    space = SPACES[dtype]
    plain = attention(20, 40, dtype=dtype, mask=(1, 1, 20, 40))
    op = dataclasses.replace(plain, zero_masked=True)
    arrays = random_arrays(op)
    hidden = np.random.default_rng(1).random((20, 40)) < 0.5
    hidden[3] = True  # this query sees nothing: its result is zero
    arrays[3] = np.where(hidden, -np.inf, 0).astype("float32")[None, None]
    largest = [*arrays[:3], np.where(hidden, np.finfo("float32").min, 0).astype("float32")[None, None]]
    truth = plain.reference(*(a.astype("float32") for a in largest))  # in float32, as exporters mean it
    functions = [space.emit(x, space.default(x, MACHINE), MACHINE) for x in (op, plain)]
    zero, mean = compiled(functions)
    blank = [np.full(op.output.shape, np.nan, dtype)]
    with np.errstate(invalid="ignore"):
        expected = op.reference(*(a.astype("float64") for a in arrays))
    (result,) = zero(arrays, blank)
    assert np.abs(result - expected).max() <= TOLERANCES[dtype] * np.abs(expected).max()
    assert not result[0, 3].any()
    (result,) = mean(largest, blank)
    assert np.abs(result - truth).max() <= TOLERANCES[dtype] * np.abs(truth).max()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_large_scores_do_not_overflow(dtype, emulated):
    op = attention(16, 48, dtype=dtype)
    arrays = random_arrays(op)
    arrays[0] *= 100
    # A score of 400 is rounded to 2**-16: so much its exponential may be off.
    check_numbers(SPACES[dtype], [(op, None, arrays)], max(TOLERANCES[dtype], 2.0**-15))


def test_refusals():
    assert "float32" in HALF.refuses(attention(8, 8, dtype="float32"), MACHINE)
    assert "float16" in SINGLE.refuses(attention(8, 8), MACHINE)
    assert "above 256" in HALF.refuses(attention(8, 8, 264), MACHINE)
    assert "shared memory" in SINGLE.refuses(attention(8, 8, 2000, dtype="float32"), MACHINE)
    for space, dtype in ((HALF, "float16"), (SINGLE, "float32")):
        assert "zero" in space.refuses(attention(0, 8, dtype=dtype), MACHINE)


def test_every_form_is_served_on_every_gpu():
    for machine in MODELS.values():
        for dtype, space in SPACES.items():
            for op in forms(dtype):
                assert space.refuses(op, machine) is None, op
                assert space.default(op, machine)["tile"] in space.knobs(op, machine)[0].choices, op


def test_few_queries_split_the_keys():
    assert attention_shapes.is_grouped(DECODE) and attention_shapes.rows_of(DECODE) == 4
    assert HALF.default(DECODE, MACHINE)["tile"][2] == 16  # 8 blocks would leave 100 multiprocessors idle
    assert HALF.default(attention(2048, 2048, 128, 32), MACHINE)["tile"][2] == 1


@pytest.mark.parametrize(
    ("arch", "ops"),
    [
        ("sm_80", (attention(2048, 2048, 64, 16, 4, causal=True), DECODE, attention(512, 512, 256, 8))),
        ("sm_90", (attention(2048, 2048, 128, 16, 4, causal=True),
                   attention(128, 128, 32, 12, packed=True, mask=(1, 1, 1, 128)),
                   attention(512, 512, 64, 16, dtype="bfloat16", causal=True))),
    ],
)  # fmt: skip
def test_compiled_code(arch, ops, compiler):
    module, found = check_machine_code(HALF, [(op, None) for op in ops], arch)
    assert ("f1_kernel_1" in found) == (ops[1] is DECODE)  # the sum of the splits
    ptx = compiler.ptx(module.source, arch)
    for kernel in range(len(ops)):
        body = body_of(ptx, f"f{kernel}_kernel")
        for instruction in (
            "mma.sync.aligned.m16n8k16", "ldmatrix.sync.aligned.m8n8.x4.trans", "ex2.approx", "cp.async.cg",
        ):  # fmt: skip
            assert instruction in body
        assert "ld.global" not in body.replace("ld.global.nc.f32", "")  # masks alone are not copied


def test_compiled_float32(compiler):
    ops = [
        attention(128, 128, 64, 12, dtype="float32", packed=True, causal=True, mask=(1, 1, 1, 128)),
        attention(1024, 1024, 128, 16, 4, "float32"), attention(256, 256, 512, 1, dtype="float32"),
        attention(1, 2048, 128, 32, kv_heads=8, dtype="float32"),
    ]  # fmt: skip
    module, _ = check_machine_code(SINGLE, [(op, None) for op in ops])
    ptx = compiler.ptx(module.source, TARGET.machine.arch)
    assert "cp.async.cg" in ptx and "ld.shared.v4" in ptx and "fma.rn.f32" in ptx and "mma" not in ptx


@pytest.mark.parametrize(
    ("dtype", "dim"),
    [
        ("float16", 64), ("float32", 256),
        *exhaustive([("bfloat16", 128), ("float16", 256), ("float32", 64)]),
    ],
)  # fmt: skip
def test_no_choice_spills(dtype, dim, compiler):
    op = attention(300, 300, dim, 8, dtype=dtype, causal=True, kv_heads=4)
    every = [point for point in points(SPACES[dtype], op) if 1 in point["tile"][2:4]]
    generator = np.random.default_rng(dim)
    picked = generator.choice(len(every), min(2, len(every)), replace=False)
    check_machine_code(SPACES[dtype], [(op, every[i]) for i in picked])


def test_the_target_has_a_kernel_for_both_precisions():
    assert TARGET.space_for(attention(8, 8))[0].name == "cuda.attention"
    assert parse_target("cuda:sm_86").space_for(attention(8, 8, dtype="float32"))[0].name == (
        "cuda.attention_f32"
    )
