"""Depthwise convolutions: numbers on the emulated GPU, and what the compiled code is made of."""

import dataclasses
import random

import pytest

from hetero_tvm.machines.gpu import MODELS
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.schedules.cuda.images.depthwise import CudaDepthwiseSpace
from tests.schedules.cuda.running import MACHINE, check_points, compiled_facts
from tests.selection import exhaustive, thorough

SPACE = CudaDepthwiseSpace()
TOLERANCE = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-21}
"""Sums are float32; the result rounds once."""
BLOCKED = dict.fromkeys(("x_layout", "y_layout", "residual_layout"), "NCHW8c")


def depthwise(channels, height, width, kernel=(3, 3), **fields):
    return Conv2d(2, channels, height, width, channels, kernel, groups=channels, **fields)


def points(op):
    pixels, threads = SPACE.knobs(op, MACHINE)
    return [{"pixels": p, "threads": t} for p in pixels.choices for t in threads.choices]


def check(cases):
    check_points(SPACE, cases, MACHINE, lambda op: TOLERANCE[op.dtype])


def default(op, machine=MACHINE):
    return op, SPACE.default(op, machine)


@pytest.mark.thorough
def test_choices(emulated):
    op = depthwise(16, 7, 9, padding=(1, 1, 1, 1), epilogue=("bias", "relu6"), dtype="float16", **BLOCKED)
    check([(op, point) for point in points(op)[::2]])


@pytest.mark.parametrize("layouts", [BLOCKED, *thorough([{}])], ids=["blocked", "plain"])
def test_forms(layouts, emulated):
    cases = [
        depthwise(8, 6, 7, padding=(1, 1, 1, 1), epilogue=("bias", "residual", "gate", "relu"), **layouts),
        depthwise(20, 9, 8, strides=(2, 2), padding=(0, 0, 1, 1), epilogue=("bias", "sigmoid"), **layouts),
        depthwise(3, 9, 9, (5, 3), dilation=(2, 1), padding=(4, 1, 2, 0), dtype="bfloat16", **layouts),
        depthwise(12, 5, 1, (1, 1), epilogue=("bias",), dtype="float16", **layouts),
    ]
    check([(op, random.Random(0).choice(points(op))) for op in cases])


def test_zeros_around_the_input(emulated):
    op = depthwise(8, 6, 7, padding=(1, 1, 1, 1), **BLOCKED)
    check([default(dataclasses.replace(op, x_layout="NCHW8c+1,2,1,1"))])


def test_refusals():
    op = depthwise(8, 6, 7, **BLOCKED)
    assert "depthwise" in SPACE.refuses(dataclasses.replace(op, groups=4), MACHINE)
    assert "layouts" in SPACE.refuses(dataclasses.replace(op, x_layout="NCHW"), MACHINE)
    assert "zeros around" in SPACE.refuses(dataclasses.replace(op, y_layout="NCHW8c+1,1,1,1"), MACHINE)
    assert "taps" in SPACE.refuses(depthwise(8, 20, 20, (9, 9)), MACHINE)


@pytest.mark.parametrize("arch", ["sm_80", *exhaustive(["sm_90"])])
def test_compiled_code(arch, compiler):
    machine = MODELS[arch]
    op = depthwise(96, 56, 56, padding=(1, 1, 1, 1), epilogue=("bias", "relu6"), dtype="float16", **BLOCKED)
    cases = [default(op, machine), (op, random.Random(arch).choice(points(op)))]
    cases.append((op, {"pixels": max(SPACE.knobs(op, machine)[0].choices), "threads": 256}))
    ptx = compiled_facts(SPACE, cases, machine, compiler)
    assert "ld.global.nc.v4" in ptx and "st.global.v4" in ptx
