"""Products of pairs of computed matrices: numbers on the emulated GPU, and what the code is made of."""

import dataclasses
import math
import random

import numpy as np
import pytest

from hetero_tvm.machines.gpu import MODELS
from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.schedules.cuda.products import product as tiled_product
from hetero_tvm.schedules.cuda.products.batch_matmul import CudaBatchMatmulSpace
from tests.schedules.cuda.running import MACHINE, check_points, compiled_facts
from tests.schedules.cuda.spaces import representative
from tests.selection import exhaustive

SPACE = CudaBatchMatmulSpace()
TF32 = dataclasses.replace(MACHINE, features=("tf32",))
TOLERANCE = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-21, "int8": 0.0}


def check(cases, machine=MACHINE):
    """Sums are float32 (int32 for int8: exact); the result rounds once, tf32 also the factors."""
    check_points(SPACE, cases, machine, lambda op: 6 * 2.0**-11 if machine is TF32 else TOLERANCE[op.dtype])


def default(op, machine=MACHINE):
    return op, SPACE.default(op, machine)


def product(lead, m, n, k, transposed=False, shared=False, dtype="float32"):
    """Compact operands; ``transposed``: B is [*lead, n, k]; ``shared``: one matrix for all of ``lead``."""
    matrix, steps = ((n, k), (1, k)) if transposed else ((k, n), (n, 1))
    left, right = (*lead, m, k), matrix if shared else (*lead, *matrix)

    def strides(area):
        return [math.prod(lead[i + 1 :]) * area for i in range(len(lead))]

    right_at = (0, *([0] * len(lead) if shared else strides(n * k)), *steps)
    order = tuple(range(len(lead) + 2))
    return BatchMatmul(lead, m, n, k, left, (0, *strides(m * k), k, 1), right, right_at, order, dtype)


def forms(dtype):
    both = (False, True) if dtype != "int8" else (True,)
    return [
        product(lead, m, n, k, transposed, shared, dtype=dtype)
        for transposed in both
        for lead, m, n, k, shared in (
            ((2, 3), 20, 40, 48, False),
            ((), 17, 16, 80, False),
            ((3,), 1, 24, 33, False),
            ((2,), 33, 7, 10, True),
            ((1, 2), 5, 1, 1, False),
        )
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float16", "int8", *exhaustive(["bfloat16", "float32"])])
def test_forms(dtype, emulated):
    check([default(op) for op in forms(dtype)])


@pytest.mark.exhaustive
def test_forms_with_tf32(emulated):
    check([default(op, TF32) for op in forms("float32")], TF32)


def test_operands_where_they_lie(emulated):
    """Heads side by side in the rows of one tensor, and a result whose rows come before its heads."""
    heads, rows = (2, 3), (0, 5 * 48, 16, 48, 1)  # [B, S, H * D]: 5 rows of 3 heads of 16 values
    scores = BatchMatmul(
        heads, 5, 5, 16, (2, 5, 48), rows, (2, 5, 48), (0, 5 * 48, 16, 1, 48), (0, 1, 2, 3), "float16"
    )
    mixed = BatchMatmul(
        heads, 5, 16, 5, (2, 3, 5, 5), (0, 75, 25, 5, 1), (2, 5, 48), rows, (0, 2, 1, 3), "float16"
    )
    later = dataclasses.replace(scores, left=(2, 5, 50), left_at=(2, 250, 16, 50, 1))  # rows at odd places
    check([default(op) for op in (scores, mixed, later)])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("dtype", "machine"), [("float16", MACHINE), *exhaustive([("float32", MACHINE), ("float32", TF32)])]
)
def test_tiles_of_every_kind_across_the_reduction(dtype, machine, emulated):
    op = product((2,), 40, 72, 72, dtype=dtype)
    tiles = representative(SPACE.knobs(op, machine)[0].choices, 64 * 128)
    check([(op, {"tile": tile}) for tile in tiles], machine)


def test_zeros_behind_the_end_are_not_multiplied_with_what_lies_there(emulated):
    """The reduction ends inside of a step; what follows in memory is not a number."""
    op = product((2,), 3, 5, 20, True, dtype="float16")
    arrays = [np.ones(x.shape, x.dtype) for x in op.inputs]
    arrays[0][1], arrays[1][1] = np.nan, np.nan
    (result,) = check_points(SPACE, [default(op)], MACHINE, None, [arrays])
    assert (result[0] == 20).all() and np.isnan(result[1]).all()


def test_more_products_than_the_grid_is_deep(emulated, monkeypatch):
    assert SPACE.refuses(product((65537,), 8, 8, 8), MACHINE) is None
    monkeypatch.setattr(tiled_product, "GRID_Z", 2)  # as many as 65535 take minutes to emulate
    op = product((3,), 70, 40, 20, dtype="float16")
    check([default(op)])


def test_refusals():
    assert "transposed" in SPACE.refuses(product((2,), 8, 8, 8, dtype="int8"), MACHINE)
    turned = dataclasses.replace(product((2,), 8, 8, 8), left_at=(0, 64, 1, 8))
    assert "along the reduction" in SPACE.refuses(turned, MACHINE)
    assert "float64" in SPACE.refuses(product((2,), 8, 8, 8, dtype="float64"), MACHINE)


@pytest.mark.parametrize("arch", ["sm_80", *exhaustive(["sm_90"])])
def test_compiled_code(arch, compiler):
    machine = dataclasses.replace(MODELS[arch], features=("tf32",))
    kinds = [("int8", True), ("float16", False), ("float32", False)]
    ops = [product((16,), 512, 512, 256, transposed, dtype=dtype) for dtype, transposed in kinds]
    cases = [default(op, machine) for op in ops]
    for op in ops[:2]:
        choice = random.Random(arch).choice(SPACE.knobs(op, machine)[0].choices)
        cases.append((op, {"tile": choice}))
    ptx = compiled_facts(SPACE, cases, machine, compiler)
    for instruction in (
        "mma.sync.aligned.m16n8k32.row.col.s32.s8",
        "ldmatrix.sync.aligned.m8n8.x4.trans",
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32",
        "cp.async.cg.shared.global",
    ):
        assert instruction in ptx
