"""Products of a few rows: numbers on the emulated GPU, and what the compiled code is made of."""

import random

import pytest

from hetero_tvm.machines.gpu import MODELS
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.cuda.products.gemv import CudaGemvSpace
from tests.schedules.cuda.running import MACHINE, check_points, compiled_facts
from tests.selection import exhaustive

SPACE = CudaGemvSpace()
TOLERANCE = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-20}
"""Sums are float32; the result rounds once."""


def check(cases):
    check_points(SPACE, cases, MACHINE, lambda op: TOLERANCE[op.dtype])


def default(op, machine=MACHINE):
    return op, SPACE.default(op, machine)


def points(op):
    columns, split, across = SPACE.knobs(op, MACHINE)
    return [
        {"columns": c, "split": s, "across": a}
        for c in columns.choices
        for s in split.choices
        for a in across.choices
    ]


@pytest.mark.thorough
def test_choices(emulated):
    op = Matmul((3,), 21, 600, ("bias",), "float16")  # columns that fill no block, lanes that have nothing
    every = points(op)
    assert len(every) == 36
    check([(op, point) for point in every[::5]])


@pytest.mark.thorough
def test_forms(emulated):
    check(
        [
            default(op)
            for op in (
                Matmul((1,), 40, 1024, (), "float16"),
                Matmul((1, 8), 16, 96, ("bias", "gelu_erf"), "float16"),
                Matmul((2,), 5, 33, ("residual", "relu"), "float16"),
                Matmul((1,), 9, 50, ("bias",)),
                Matmul((2, 2), 24, 256, ("bias", "residual"), "bfloat16"),
                Matmul((1, 1), 1, 1),
                GatedMatmul((1,), 20, 300, "silu", True, "float16"),
                GatedMatmul((3,), 7, 31, "gelu_tanh"),
            )
        ]
    )


def test_refusals():
    assert "9 rows" in SPACE.refuses(Matmul((9,), 8, 32), MACHINE)
    assert "int8" in SPACE.refuses(Matmul((1,), 8, 32, (), "int8"), MACHINE)


@pytest.mark.parametrize("arch", ["sm_80", *exhaustive(["sm_90"])])
def test_compiled_code(arch, compiler):
    machine = MODELS[arch]
    ops = [
        Matmul((1,), 4096, 4096, ("bias",), "float16"),
        Matmul((8,), 768, 3072, ("bias",)),
        GatedMatmul((4,), 2048, 768, "silu", False, "bfloat16"),
    ]
    cases = [default(op, machine) for op in ops]
    cases += [(op, random.Random(arch).choice(points(op))) for op in ops]
    ptx = compiled_facts(SPACE, cases, machine, compiler)
    assert "ld.global.nc.v4" in ptx and "shfl.sync.bfly" in ptx
