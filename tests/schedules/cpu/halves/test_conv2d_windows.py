"""Convolution of bfloat16 whose windows of plain images are rows of tiles."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.integers.bf16_conv2d import Bf16Conv2d
from hetero_tvm.schedules.cpu.halves import conv2d_windows
from hetero_tvm.schedules.cpu.halves.conv2d import halves_pay
from hetero_tvm.schedules.cpu.halves.conv2d_windows import WindowShape
from tests.schedules.cpu.halves.test_conv2d import MACHINE, SPACE, ZEN, all_points, check, operands
from tests.schedules.cpu.images.helpers import PAD, on
from tests.schedules.cpu.running import point_runners
from tests.schedules.representatives import TILES
from tests.selection import thorough

multiplies = pytest.mark.skipif(
    not conv2d_windows.applies(Conv2d(1, 3, 8, 8, 16, (3, 3)), MACHINE), reason="no amx_bf16"
)


def half(op):
    return Bf16Conv2d.of(on(TILES, op, None))


@multiplies
@pytest.mark.parametrize(
    "op",
    [
        Conv2d(1, 3, 37, 38, 64, (7, 7), (2, 2), (3, 3, 3, 3), epilogue=("bias", "relu")),
        *thorough([Conv2d(2, 3, 23, 25, 40, (3, 3), (2, 2), PAD, epilogue=("bias", "residual"))]),
        Conv2d(2, 2, 9, 12, 16, (1, 3)),
        Conv2d(1, 4, 17, 40, 33, (3, 8), (1, 2), (0, 3, 2, 1), (3, 1)),
        *thorough(
            [
                Conv2d(1, 3, 20, 24, 32, (3, 9), (2, 3), (9, 3, 2, 11)),
                Conv2d(1, 1, 9, 12, 16, (5, 5)),
                Conv2d(3, 1, 40, 5, 130, (11, 16), padding=(5, 8, 5, 7), epilogue=("bias", "gelu_erf")),
                Conv2d(1, 3, 33, 33, 32, (3, 3), padding=PAD),
                Conv2d(1, 3, 1, 1, 8, (3, 3), padding=PAD),
            ]
        ),
    ],
    ids=lambda op: op.label,
)
def test_unusual_shapes(op):
    op = half(op)
    assert SPACE.refuses(op, MACHINE) is None
    points = all_points(op)
    check(op, [SPACE.default(op, MACHINE), *points[:: max(1, len(points) // 3)]])


@multiplies
@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_random_shapes(data):
    def draw(least, most):
        return data.draw(st.integers(least, most))

    kernel, padding = (draw(1, 9), draw(2, 12)), tuple(draw(0, 9) for _ in range(4))
    height, width = (extent + draw(0, 40) for extent in kernel)
    dilation = draw(1, 2 if height >= 2 * kernel[0] else 1), 1
    strides = draw(1, 4), draw(1, 4)
    op = half(Conv2d(draw(1, 2), draw(1, 4), height, width, draw(1, 70), kernel, strides, padding, dilation))
    check(op, [SPACE.default(op, MACHINE), all_points(op)[-1]])


@multiplies
def test_infinity_reaches_the_windows_that_cover_it_and_no_others():
    op = half(Conv2d(1, 3, 20, 40, 16, (3, 7), (2, 2), (1, 3, 1, 3)))
    x, w = operands(op)
    x[0, 0, 3, 7], x[0, 2, 12, 30], x[0, 1, 19, 39] = np.inf, np.nan, -np.inf
    (run,) = point_runners(SPACE, op, [SPACE.default(op, MACHINE)], MACHINE)
    with np.errstate(invalid="ignore"):
        wanted = op.reference(x.astype(np.float64), w)
    assert 0 < np.isfinite(wanted).sum() < wanted.size
    np.testing.assert_allclose(run(x, w), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("channels", "columns", "taken"), [(3, 7, 7), (3, 9, 3), (1, 16, 16), (2, 17, 1), (4, 14, 7), (3, 11, 1)]
)
def test_a_step_takes_whole_windows_or_equal_parts(channels, columns, taken):
    shape = WindowShape(half(Conv2d(1, channels, 30, 30, 16, (2, columns))), 16)
    assert shape.columns == taken
    assert len(shape.places) == 2 * columns // taken


@pytest.mark.parametrize(
    ("op", "machine"),
    [
        (Conv2d(1, 3, 8, 8, 64, (3, 3)), ZEN),
        (Conv2d(1, 5, 8, 8, 64, (3, 3)), TILES),
        (Conv2d(1, 3, 8, 8, 64, (3, 1)), TILES),
        (Conv2d(1, 3, 8, 8, 64, (3, 3), dilation=(1, 2)), TILES),
    ],
    ids=["no matrix unit", "many channels", "one column", "dilated"],
)
def test_other_convolutions_of_plain_images_are_refused(op, machine):
    assert "neighbouring channels" in SPACE.refuses(half(op), machine)


def test_it_pays_for_large_filters():
    assert halves_pay(on(TILES, Conv2d(1, 3, 224, 224, 64, (7, 7), (2, 2), (3, 3, 3, 3)), None), TILES)
    assert not halves_pay(on(TILES, Conv2d(1, 3, 224, 224, 32, (3, 3), (2, 2), PAD), None), TILES)
