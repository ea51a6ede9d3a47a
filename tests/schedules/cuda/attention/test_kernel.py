"""Fused attention: numbers on the emulated GPU, and what the compiled code is made of."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.machines.gpu import MODELS
from hetero_tvm.schedules.cuda.attention.float32 import CudaFloatAttentionSpace
from hetero_tvm.schedules.cuda.attention.tensor_cores import CudaAttentionSpace
from hetero_tvm.targets.registry import parse_target
from tests.schedules.cuda.attention.cases import attention, forms
from tests.schedules.cuda.running import MACHINE, TARGET, compiled
from tests.schedules.cuda.spaces import check_machine_code, check_numbers, points, random_arrays
from tests.selection import exhaustive

HALF, SINGLE = CudaAttentionSpace(), CudaFloatAttentionSpace()
SPACES = {"float16": HALF, "bfloat16": HALF, "float32": SINGLE}
TOLERANCES = {
    "float16": 3 * 2.0**-11,  # the weights are rounded to the dtype, and so is the result
    "bfloat16": 3 * 2.0**-8,
    "float32": 2e-6,  # sums of up to 256 products, and exponentials of 2 units in the last place
}
"""Relative to the largest result."""
# The kernels differ in what multiplies; forms are read by code that they share.
PORTION = {"float16": slice(0, None, 2), "bfloat16": slice(3, 22, 6), "float32": slice(1, None, 2)}


def check(dtype, cases):
    check_numbers(SPACES[dtype], cases, TOLERANCES[dtype])


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float16", *exhaustive(["bfloat16", "float32"])])
def test_forms(dtype, emulated):
    check(dtype, [(op, None, None) for op in forms(dtype)[PORTION[dtype]]])


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", *exhaustive(["float16"])])
def test_choices(dtype, emulated):
    op = attention(70, 150, 20, dtype=dtype, causal=True)  # rows, keys and columns that fill no tile
    every = points(SPACES[dtype], op)
    picked = every[:: len(every) // 4]
    assert len({point["tile"][2:] for point in picked}) > 1
    check(dtype, [(op, point, None) for point in picked])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("dtype", "dim"), [("float32", 256), *exhaustive([("float16", 200), ("float32", 512)])]
)
def test_large_heads(dtype, dim, emulated):
    check(dtype, [(attention(9, 40, dim, 1, dtype=dtype, causal=True), None, None)])


@pytest.mark.thorough
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


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("dtype", "dim"),
    [
        ("float16", 64),
        ("float32", 256),
        *exhaustive([("bfloat16", 128), ("float16", 256), ("float32", 64)]),
    ],
)
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
