"""Gated products: numbers on the emulated GPU, and what the compiled code is made of."""

import dataclasses
import random

import pytest

from hetero_tvm.machines.gpu import MODELS
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.schedules.cuda.products.gated_matmul import CudaGatedMatmulSpace
from tests.schedules.cuda.running import MACHINE, check_points, compiled_facts
from tests.schedules.cuda.spaces import representative
from tests.selection import exhaustive, thorough

SPACE = CudaGatedMatmulSpace()
TF32 = dataclasses.replace(MACHINE, features=("tf32",))
TOLERANCE = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-20}
"""Sums are float32; the result rounds once."""


def default(op, machine=MACHINE):
    return op, SPACE.default(op, machine)


def check(cases, machine=MACHINE):
    check_points(SPACE, cases, machine, lambda op: 2.0**-8 if machine is TF32 else TOLERANCE[op.dtype])


@pytest.mark.thorough
def test_forms(emulated):
    shapes = [((20,), 40, 48), ((2, 3), 33, 70), ((1,), 8, 16), ((5,), 150, 3)]
    cases = [
        default(GatedMatmul(lead, n, k, "silu", biased, "float16"))
        for biased in (False, True)
        for lead, n, k in shapes
    ]
    check([*cases, default(GatedMatmul((20,), 40, 48, "gelu_tanh", True, "bfloat16"))])


@pytest.mark.parametrize("machine", [*thorough([MACHINE]), TF32], ids=["f32", "tf32"])
def test_float32(machine, emulated):
    ops = [GatedMatmul((20,), 40, 48, "silu", True), GatedMatmul((3,), 9, 21, "sigmoid")]
    check([default(op, machine) for op in ops], machine)


@pytest.mark.thorough
def test_shapes_of_tiles(emulated):
    op = GatedMatmul((70,), 50, 64, "silu", True, "float16")
    tiles = representative(SPACE.knobs(op, MACHINE)[0].choices, 64 * 128)
    check([(op, {"tile": tile}) for tile in tiles])


def test_refusals():
    assert "float64" in SPACE.refuses(GatedMatmul((8,), 8, 8, "silu", dtype="float64"), MACHINE)


@pytest.mark.parametrize("arch", ["sm_80", *exhaustive(["sm_90"])])
def test_compiled_code(arch, compiler):
    machine = MODELS[arch]
    op = GatedMatmul((512,), 2048, 768, "silu", True, "float16")
    choice = random.Random(arch).choice(SPACE.knobs(op, machine)[0].choices)
    ptx = compiled_facts(SPACE, [default(op, machine), (op, {"tile": choice})], machine, compiler)
    for instruction in ("mma.sync.aligned.m16n8k16", "ldmatrix.sync", "cp.async.cg.shared.global"):
        assert instruction in ptx
