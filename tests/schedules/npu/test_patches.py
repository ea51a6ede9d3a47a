"""Patches of an image in L1, against those that NumPy cuts out."""

import numpy as np
import pytest

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.schedules.npu.emit import L0A, L0B, L0C, L1, UB, At, Kernel
from hetero_tvm.schedules.npu.patches import Image
from tests.schedules.npu.running import machine, run_function


def plain(*index):
    return index


def cut(image, op):
    """[pixels, taps x channels] of an image [height, width, channels]."""
    top, left, bottom, right = op.padding
    padded = np.pad(image, ((top, bottom), (left, right), (0, 0)))
    rows = []
    for y in range(op.out_height):
        for x in range(op.out_width):
            taps = [
                padded[y * op.strides[0] + i * op.dilation[0], x * op.strides[1] + j * op.dilation[1]]
                for i in range(op.kernel[0])
                for j in range(op.kernel[1])
            ]
            rows.append(np.concatenate(taps))
    return np.array(rows)


def patches(image, op, first, count, channel=0, channels=None):
    """Rows ``first ...`` of the patch matrix, out of L0A by a product with the identity."""
    view = Image.of(op, channels, op.channels) if channels else Image.of(op)
    deep = view.channels * op.kernel[0] * op.kernel[1]
    k = Kernel()
    with k:
        x, eye = k.argument("X", image.shape, "float16"), k.argument("I", (deep, deep), "float16")
        y = k.argument("Y", (count, deep), "float16")
        held = k.alloc(L1, image.shape, "float16")
        k.load(image.shape, At(held, plain), At(x, plain))
        ones = k.alloc(L1, (deep, deep), "float16")
        a0, b0 = k.alloc(L0A, (count, deep), "float16"), k.alloc(L0B, (deep, deep), "float16")
        k.load((deep, deep), At(ones, plain), At(eye, plain))
        k.move((deep, deep), At(b0, plain), At(ones, plain))
        with k.loop(1) as zero:
            view.patches(k, a0, (count, deep), first + zero, 0, held, channel)
        c = k.alloc(L0C, (count, deep), "float32")
        left, right = At(a0, lambda i, j, q: (i, q)), At(b0, lambda i, j, q: (q, j))
        k.mmad((count, deep, deep), At(c, lambda i, j, q: (i, j)), left, right, True)
        out = At(k.alloc(UB, (count, deep), "float16"), plain)
        k.move_out((count, deep), out, At(c, plain))
        k.store((count, deep), At(y, plain), out)
    eye = np.eye(deep, dtype=np.float16)
    return run_function(k.function, machine("mobile"), [image, eye], (count, deep), "float16")


@pytest.mark.parametrize(
    "op",
    [
        Conv2d(1, 8, 7, 9, 4, (3, 3), (1, 1), (1, 1, 1, 1)),
        Conv2d(1, 16, 8, 6, 4, (3, 2), (2, 1), (0, 1, 1, 0)),
        Conv2d(1, 8, 9, 9, 4, (2, 2), (1, 2), (2, 2, 2, 2), (3, 2)),
    ],
    ids=lambda op: op.label,
)
def test_patches_are_those_of_the_convolution(op):
    image = np.random.default_rng(0).standard_normal((op.height, op.width, op.channels)).astype(np.float16)
    expected = cut(image, op)
    for first, count in ((0, len(expected) // 2), (op.out_width + 1, 5), (len(expected) - 3, 3)):
        actual = patches(image, op, first, count)
        np.testing.assert_array_equal(actual, expected[first : first + count])


def test_some_channels_of_every_pixel():
    op = Conv2d(1, 48, 5, 5, 48, (3, 3), (1, 1), (1, 1, 1, 1), groups=48)
    image = np.random.default_rng(0).standard_normal((5, 5, 48)).astype(np.float16)
    actual = patches(image, op, 0, 25, channel=16, channels=16)
    np.testing.assert_array_equal(actual, cut(image[:, :, 16:32], op))


def test_rows_of_a_matrix_are_an_image_of_one_pixel_per_row():
    view = Image(30, 1, 64)
    fields = view.fields(rows=30, pad_top=0, pixel_bytes=128)
    assert fields["row_pitch"] == 128 and fields["image_bytes"] == 30 * 128
    assert (fields["kernel_h"], fields["kernel_w"], fields["out_width"]) == (1, 1, 1)
