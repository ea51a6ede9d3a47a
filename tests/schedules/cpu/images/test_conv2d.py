"""Direct convolution: strides, dilations, paddings, depthwise, patches; every choice of every knob."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.images.conv2d import Conv2dSpace
from tests.ops.helpers import sample_inputs
from tests.schedules.cpu.images.helpers import random_conv2d
from tests.schedules.cpu.running import (
    MACHINES,
    MOST_ROWS,
    SWEPT,
    check_points,
    check_shapes,
    llvm_of,
    point_runners,
)
from tests.selection import thorough

SPACE = Conv2dSpace()
AVX2 = MACHINES["avx2"]
PAD = (1, 1, 1, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("machine", SWEPT)
def test_every_choice_computes_the_convolution(machine):
    ops = [
        Conv2d(2, 3, 9, 11, 17, (3, 3), (1, 1), PAD, epilogue=("bias", "relu")),
        Conv2d(1, 5, 16, 14, 15, (1, 1), epilogue=("bias", "residual", "relu", "gate")),
        Conv2d(1, 4, 13, 9, 6, (3, 2), (2, 2), (1, 0, 2, 1)),
        Conv2d(2, 7, 8, 8, 7, (3, 3), (2, 2), PAD, groups=7, epilogue=("bias", "relu6")),
        Conv2d(2, 6, 8, 7, 10, (3, 3), (1, 1), PAD, groups=2, epilogue=("residual",), constant_weight=False),
    ]
    check_shapes(SPACE, ops, machine)


@pytest.mark.parametrize(
    "op",
    [
        Conv2d(1, 1, 1, 1, 1, (1, 1)),
        Conv2d(1, 3, 5, 1, 2, (1, 1)),
        Conv2d(1, 2, 7, 9, 3, (3, 3), dilation=(2, 3)),
        Conv2d(1, 2, 9, 9, 3, (3, 3), (2, 3), (2, 2, 2, 2), (2, 1)),
        Conv2d(1, 3, 20, 20, 5, (4, 4), (4, 4)),  # patches, their taps in loops
        Conv2d(2, 3, 32, 17, 5, (8, 8), (8, 8), epilogue=("bias",)),  # a rest of columns
        Conv2d(1, 3, 12, 12, 4, (7, 7), (2, 2), (3, 3, 3, 3)),
        Conv2d(1, 2, 6, 6, 2, (1, 1), (2, 2)),
        Conv2d(1, 2, 6, 6, 2, (1, 1), padding=PAD),
        Conv2d(1, 1, 6, 6, 1, (3, 3), padding=PAD),  # one group of one channel
        Conv2d(2, 3, 5, 6, 3, (3, 3), (1, 2), (0, 2, 1, 0), groups=3, epilogue=("gate", "residual")),
        Conv2d(1, 2, 3, 3, 2, (3, 3), padding=(5, 5, 5, 5)),  # some results see zeros only
        Conv2d(1, 3, 5, 5, 6, (3, 3), groups=3, epilogue=("bias",)),  # two filters a channel
        Conv2d(2, 12, 5, 6, 21, (2, 3), (1, 2), PAD, groups=3),  # seven filters a group
        Conv2d(1, 3, 14, 13, 5, (9, 8), padding=PAD, dilation=(1, 2)),  # more taps than are unrolled
        Conv2d(2, 2, 4, 130, 3, (1, 64), padding=(0, 32, 0, 31)),  # in one row
        *thorough([Conv2d(1, 3, 3, 150, 5, (2, 51), dilation=(1, 2), epilogue=("bias",))]),
        Conv2d(1, 4, 70, 9, 8, (64, 1), groups=4),
        Conv2d(1, 16, 32, 32, 33, (1, 1)),  # planes of whole pages, which are put apart
        Conv2d(1, 4, 9, 11, 21, (3, 3), (2, 1), PAD, epilogue=("bias",), constant_weight=False),
        Conv2d(2, 5, 12, 12, 5, (8, 8), groups=5, constant_weight=False),
        Conv2d(2, 5, 37, 41, 5, (3, 3), (2, 2), PAD, groups=5),  # every other pixel
        *thorough([Conv2d(1, 3, 35, 64, 4, (7, 7), (2, 2), (3, 3, 3, 3))]),
        Conv2d(1, 4, 19, 50, 8, (3, 3), (1, 2), groups=4),  # two filters read the planes of a channel
        *thorough([Conv2d(1, 3, 70, 70, 3, (5, 5), (2, 2), (2, 2, 2, 2), groups=3, constant_weight=False)]),
    ],
    ids=str,
)
def test_unusual_shapes(op):
    check_points(SPACE, op, [SPACE.default(op, AVX2)], AVX2)


COPIED = {
    "whole panels": Conv2d(2, 19, 16, 32, 21, (1, 1), epilogue=("bias", "residual", "relu")),
    "a panel in part": Conv2d(2, 19, 18, 17, 21, (1, 1), epilogue=("bias",)),
    "rows": Conv2d(2, 17, 13, 11, 9, (3, 2), padding=(1, 0, 2, 1), epilogue=("bias", "residual")),
    "phases": Conv2d(1, 16, 13, 18, 5, (3, 3), (2, 2), PAD),
    "far apart": Conv2d(1, 16, 14, 19, 5, (2, 3), (1, 3), (0, 1, 1, 2), (1, 2)),
    "one row": Conv2d(2, 16, 1, 150, 9, (1, 5), padding=(0, 4, 0, 1)),
    "phases of a row": Conv2d(1, 16, 1, 150, 9, (1, 7), (1, 2), (0, 3, 0, 3)),
    "a row of many": Conv2d(1, 16, 3, 70, 5, (1, 3), (3, 1)),
}
"""Convolutions whose blocks are copied."""


@pytest.mark.parametrize("machine", SWEPT)
@pytest.mark.parametrize("op", COPIED.values(), ids=COPIED)
def test_blocks_that_are_copied(machine, op):
    """More than one image, block and group of filters."""
    point = {"tile": (4, 2), "blocks": 4, "groups": 2, "copied": True}
    check_points(SPACE, op, [point, point | {"blocks": 1, "groups": 1}], machine)


def test_planes_of_many_pages_are_copied_by_default():
    machine = MACHINES["avx512"]

    def copied(*sizes, **more):
        return SPACE.default(Conv2d(1, *sizes, **more), machine)["copied"]

    assert copied(512, 38, 80, 64, (1, 1))
    assert not copied(512, 7, 7, 64, (1, 1))
    assert copied(192, 104, 96, 20, (2, 2), padding=PAD)
    assert not copied(3, 38, 80, 64, (3, 3), padding=PAD)


@pytest.mark.thorough
@settings(max_examples=15)
@given(st.data())
def test_random_shapes_and_points(data):
    draw = data.draw
    machine = MACHINES[draw(st.sampled_from(sorted(MACHINES)))]
    channels = draw(st.integers(1, 6))
    depthwise = channels > 1 and draw(st.booleans())
    filters = channels if depthwise else draw(st.integers(1, 20))
    op = random_conv2d(draw, channels, filters, channels if depthwise else 1)
    assume(SPACE.refuses(op, machine) is None)
    point = {knob.name: draw(st.sampled_from(knob.choices)) for knob in SPACE.knobs(op, machine)}
    check_points(SPACE, op, [point], machine)


def test_default_is_a_choice_and_features_are_finite():
    lengths = set()
    ops = [
        Conv2d(1, 64, 56, 56, 64, (3, 3), padding=PAD),
        Conv2d(1, 3, 224, 224, 768, (16, 16), (16, 16)),
        Conv2d(1, 96, 112, 112, 96, (3, 3), (2, 2), PAD, groups=96),
        Conv2d(8, 2048, 7, 7, 512, (1, 1)),
        Conv2d(1, 1, 1, 1, 1, (1, 1)),
    ]
    for machine in MACHINES.values():
        for op in ops:
            point = SPACE.default(op, machine)
            SPACE.check(op, point, machine)
            for rows, vectors in SPACE.knobs(op, machine)[0].choices:
                assert rows <= MOST_ROWS[machine.registers][vectors]
            values = SPACE.features(op, point, machine)
            assert np.isfinite(values).all()
            lengths.add(len(values))
    assert len(lengths) == 1


def test_refusals():
    assert SPACE.refuses(Softmax((3,), 4), AVX2) == "not a convolution"
    assert SPACE.refuses(Conv2d(1, 2, 20, 20, 3, (9, 9), (2, 2)), AVX2) == "81 filter taps, at most 49"
    assert SPACE.refuses(Conv2d(1, 2, 3, 3, 2, (5, 5)), AVX2) == "an extent is zero"
    assert SPACE.refuses(Conv2d(0, 2, 3, 3, 2, (1, 1)), AVX2) == "an extent is zero"


def test_packed_weights():
    op = Conv2d(1, 2, 5, 5, 5, (1, 3))
    point = {**SPACE.default(op, AVX2), "tile": (4, 1)}
    ((index, pack),) = SPACE.pack(op, point, AVX2).items()
    assert op.inputs[index].name == "W"
    w = np.arange(30, dtype="float32").reshape(5, 2, 1, 3)
    packed = pack(w)
    assert packed.shape == (2, 2, 3, 4) and packed.flags.c_contiguous and packed.dtype == np.float32
    assert packed[1, 1, 2, 0] == w[4, 1, 0, 2] and not packed[1, ..., 1:].any()
    assert packed[0, 1, 0, 3] == w[3, 1, 0, 0]


def test_nan_spreads_no_further_than_the_window():
    op = Conv2d(2, 2, 9, 10, 3, (3, 3), (1, 1), PAD, epilogue=("relu",))
    (run,) = point_runners(SPACE, op, [SPACE.default(op, AVX2)], AVX2)
    x, w = sample_inputs(op)
    x[1, 0, 4, 9] = np.nan
    nans = np.isnan(run(x, w))
    expected = np.zeros_like(nans)
    expected[1, :, 3:6, 8:10] = True
    np.testing.assert_array_equal(nans, expected)


def test_no_heap_for_the_register_tile():
    op = Conv2d(1, 8, 10, 10, 8, (1, 1), epilogue=("bias", "relu"))
    assert "TVMBackendAllocWorkspace" not in llvm_of(SPACE.emit(op, SPACE.default(op, AVX2), AVX2))


@pytest.mark.parametrize("width", [17, 22, 23, 49])
def test_rows_that_end_in_several_widths_of_vectors(width):
    """LLVM 22 merges stores that fill a plane without overlapping into code that it refuses itself."""
    from hetero_tvm.api import build_model, import_model, optimize_model
    from tests.frontend.onnx.helpers import add_weight, text_model

    source = text_model(
        f"g (float[2,2,{width}] x) => (float[2,2,{width}] y) {{ y = Conv<group=2>(x, w, b) }}"
    )
    weight, bias = np.float32([[[0.5]], [[-3]]]), np.float32([1, 2])
    add_weight(add_weight(source, "w", weight), "b", bias)
    built = build_model(optimize_model(import_model(source)), use_shipped=False)
    x = np.random.default_rng(0).standard_normal((2, 2, width)).astype(np.float32)
    np.testing.assert_allclose(built.run({"x": x})[0], x * weight[:, 0] + bias[:, None], rtol=1e-6, atol=1e-6)
