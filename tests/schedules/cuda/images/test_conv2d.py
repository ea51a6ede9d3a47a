"""Convolutions: numbers on the emulated GPU, and what the compiled code is made of."""

import dataclasses
import random

import pytest

from hetero_tvm.machines.gpu import MODELS
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.schedules.cuda.images.conv2d import CudaConv2dSpace
from hetero_tvm.schedules.cuda.products.tiles import tiles
from tests.schedules.cuda.running import MACHINE, check_points, compiled_facts
from tests.selection import exhaustive

SPACE = CudaConv2dSpace()
TF32 = dataclasses.replace(MACHINE, features=("tf32",))
TOLERANCE = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-20}
"""Sums are float32; the result rounds once."""
BLOCKED = dict.fromkeys(("x_layout", "y_layout", "residual_layout"), "NCHW8c")


def check(ops, machine=MACHINE):
    cases = [small(op, machine) for op in ops]
    check_points(SPACE, cases, machine, lambda op: 2.0**-8 if machine is TF32 else TOLERANCE[op.dtype])


def small(op, machine=MACHINE):
    """The point with the smallest tile that some stage fits."""
    found = tiles(SPACE.problem(op, machine), machine)
    return op, {"tile": min(found, key=lambda tile: (tile.rows * tile.columns, tile.depth)).choice}


def forms(dtype, **layouts):
    """(batch, channels, height, width, filters, kernel, strides, padding, dilation, groups, epilogue)"""
    rows = [
        (1, 16, 7, 9, 24, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, ("bias", "relu")),
        (2, 8, 6, 6, 8, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, ("bias", "gate", "residual", "relu")),
        (1, 24, 9, 8, 16, (3, 3), (2, 2), (0, 0, 1, 1), (1, 1), 1, ()),
        (1, 20, 8, 8, 12, (3, 2), (1, 2), (2, 1, 2, 0), (2, 1), 1, ("bias", "sigmoid")),
        (1, 32, 5, 5, 32, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2, ("bias",)),
        (1, 3, 11, 11, 16, (7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1, ("bias", "relu6")),
        (2, 5, 1, 1, 7, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, ("bias",)),
    ]
    return [Conv2d(*row, **layouts, dtype=dtype) for row in rows]


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float16", *exhaustive(["float32"])])
def test_blocked_images(dtype, emulated):
    check(forms(dtype, **BLOCKED))


@pytest.mark.exhaustive
def test_plain_images(emulated):
    check([*forms("float16"), *forms("float32")[:2]])


@pytest.mark.thorough
def test_from_plain_to_blocked_and_back(emulated):
    first, *_, stem, _ = forms("float16")
    check(
        [
            dataclasses.replace(stem, y_layout="NCHW8c"),
            dataclasses.replace(first, x_layout="NCHW8c"),
            dataclasses.replace(first, x_layout="NCHW8c+1,2,1,2", y_layout="NCHW16c"),
            dataclasses.replace(forms("bfloat16")[1], x_layout="NCHW8c", y_layout="NCHW8c"),
        ]
    )


@pytest.mark.thorough
def test_with_tf32(emulated):
    check(forms("float32", **BLOCKED)[:4], TF32)


def test_groups_of_one_channel(emulated):
    check([Conv2d(1, 6, 5, 5, 12, (3, 3), padding=(1, 1, 1, 1), groups=6)])


def test_refusals():
    op = forms("float16", **BLOCKED)[0]
    assert "zeros around" in SPACE.refuses(dataclasses.replace(op, y_layout="NCHW8c+1,1,1,1"), MACHINE)
    assert "16 bytes" in SPACE.refuses(dataclasses.replace(op, x_layout="NCHW4c"), MACHINE)
    assert "groups" in SPACE.refuses(dataclasses.replace(op, groups=8), MACHINE)
    assert "float64" in SPACE.refuses(dataclasses.replace(op, dtype="float64"), MACHINE)


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ["sm_80", *exhaustive(["sm_90"])])
def test_compiled_code(arch, compiler):
    machine = MODELS[arch]
    op = Conv2d(
        8,
        256,
        14,
        14,
        256,
        (3, 3),
        padding=(1, 1, 1, 1),
        epilogue=("bias", "residual", "relu"),
        dtype="float16",
        **BLOCKED,
    )
    stem = Conv2d(
        8,
        3,
        224,
        224,
        64,
        (7, 7),
        (2, 2),
        (3, 3, 3, 3),
        epilogue=("bias", "relu"),
        y_layout="NCHW8c",
        dtype="float16",
    )
    choice = random.Random(arch).choice(SPACE.knobs(op, machine)[0].choices)
    cases = [(one, SPACE.default(one, machine)) for one in (op, stem)]
    ptx = compiled_facts(SPACE, [*cases, (op, {"tile": choice})], machine, compiler)
    for instruction in ("mma.sync.aligned.m16n8k16", "ldmatrix.sync", "cp.async.cg.shared.global"):
        assert instruction in ptx
