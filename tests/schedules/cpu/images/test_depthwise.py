"""Depthwise convolution on channel blocks: strides, dilations, halos; every choice of every knob."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.images.depthwise import DepthwiseSpace
from tests.schedules.cpu.images.helpers import PAD, on, random_blocks, random_conv2d
from tests.schedules.cpu.running import MACHINES, SWEPT, check_points, check_shapes, llvm_of

SPACE = DepthwiseSpace()
AVX2 = MACHINES["avx2"]


@pytest.mark.thorough
@pytest.mark.parametrize("machine", SWEPT)
def test_every_choice_computes_the_convolution(machine):
    ops = [
        on(
            machine,
            Conv2d(2, 20, 7, 9, 20, (3, 3), padding=PAD, groups=20, epilogue=("bias", "residual", "gate")),
            *("+1,2,2,1", "+1,1,1,1", "+1,1,1,1"),
        ),
        on(
            machine,
            Conv2d(1, 4, 5, 5, 4, (3, 3), (2, 2), PAD, groups=4, epilogue=("bias", "sigmoid")),
            "+1,1,1,1",
        ),
    ]
    check_shapes(SPACE, ops, machine)


@pytest.mark.thorough
@settings(max_examples=8)
@given(st.data())
def test_random_shapes_and_points(data):
    draw = data.draw
    machine = MACHINES[draw(st.sampled_from(sorted(MACHINES)))]
    channels = draw(st.integers(2, 40))
    op = random_blocks(draw, machine, random_conv2d(draw, channels, channels, channels))
    assume(SPACE.refuses(op, machine) is None)
    point = {knob.name: draw(st.sampled_from(knob.choices)) for knob in SPACE.knobs(op, machine)}
    check_points(SPACE, op, [point], machine)


def test_default_is_a_choice_and_features_are_finite():
    ops = [
        (Conv2d(1, 96, 112, 112, 96, (3, 3), (2, 2), PAD, groups=96), "+1,1,1,1"),
        (Conv2d(8, 960, 7, 7, 960, (5, 5), padding=(2,) * 4, groups=960), "+2,2,2,2"),
    ]
    for machine in MACHINES.values():
        for op, x in ops:
            op = on(machine, op, x)
            assert SPACE.refuses(op, machine) is None
            point = SPACE.default(op, machine)
            SPACE.check(op, point, machine)
            assert np.isfinite(SPACE.features(op, point, machine)).all()


@pytest.mark.thorough
def test_threads_share_a_single_row():
    """Zeros around the result are written once, above and below it as well."""
    for machine in MACHINES.values():
        row = Conv2d(
            *(1, 9, 3, 71, 9, (3, 5), (1, 2), (0, 2, 0, 2)), groups=9, epilogue=("bias", "residual", "relu")
        )
        op = on(machine, row, "+0,2,0,2", "+1,2,3,1", "+0,1,1,0")
        points = [{**SPACE.default(op, machine), "blocks": blocks} for blocks in (1, 2, 7)]
        check_points(SPACE, op, points, machine)
    op = on(AVX2, Conv2d(1, 8, 1, 4000, 8, (1, 31), padding=(0, 15, 0, 15), groups=8), "+0,15,0,15")
    assert SPACE.default(op, AVX2)["blocks"] > 1


def test_threads_share_rows_or_images():
    """So do convolutions: of one image all have rows, of several each has some."""

    def blocks(batch: int, channels: int, extent: int) -> int:
        op = Conv2d(batch, channels, extent, extent, channels, (3, 3), padding=PAD, groups=channels)
        return SPACE.default(on(AVX2, op, "+1,1,1,1"), AVX2)["blocks"]

    assert blocks(1, 144, 56) > 1 and blocks(1, 192, 28) > 1
    assert blocks(8, 192, 28) == 1


def test_refusals():
    op = Conv2d(1, 8, 5, 5, 8, (3, 3), padding=PAD)
    depthwise = Conv2d(1, 8, 5, 5, 8, (3, 3), padding=PAD, groups=8)
    assert SPACE.refuses(Softmax((3,), 4), AVX2) == "not a convolution"
    assert SPACE.refuses(op, AVX2) == "not depthwise"
    assert "not all in blocks of 8" in SPACE.refuses(depthwise, AVX2)
    assert "without the padding" in SPACE.refuses(on(AVX2, depthwise), AVX2)


def test_no_heap_for_the_register_tile():
    op = Conv2d(1, 8, 10, 10, 8, (3, 3), padding=PAD, groups=8, epilogue=("bias", "relu"))
    op = on(AVX2, op, "+1,1,1,1")
    assert "TVMBackendAllocWorkspace" not in llvm_of(SPACE.emit(op, SPACE.default(op, AVX2), AVX2))
