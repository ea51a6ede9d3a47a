"""Pooled boxes against the samples of every bin one by one in float64: within, beyond, across the image."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.schedules.cpu.images.roi_align import Bins, emit_roi_align
from tests.schedules.cpu.running import MACHINES, TARGET
from tests.selection import thorough

RNG = np.random.default_rng(0)


def pooled(form, x, boxes):
    kernel = emit_roi_align(MACHINES["avx2"], form).with_attr("global_symbol", "main")
    y = tvm.runtime.tensor(np.full((form.boxes, form.image[1], *form.size), 7, "float32"))
    compile_kernels(tvm.IRModule({"main": kernel}), TARGET).jit()["main"](
        tvm.runtime.tensor(x), tvm.runtime.tensor(boxes), y
    )
    return y.numpy()


def taps(at, extent):
    """Pixels and weights of a sample along an axis; none more than a pixel off the image."""
    if not -1 <= at <= extent:
        return []
    near = min(max(at, 0.0), extent - 1.0)
    low = int(near)
    return [(low, 1 - (near - low)), (min(low + 1, extent - 1), near - low)]


def expected(form, x, boxes):
    (_, channels, height, width), (rows, columns) = form.image, form.size
    y = np.zeros((form.boxes, channels, rows, columns))
    for r, (image, *corners) in enumerate(boxes.astype("float64")):
        left, top, right, bottom = (corner * form.scale for corner in corners)
        sides = [bottom - top, right - left] if form.aligned else [max(bottom - top, 1), max(right - left, 1)]
        steps = [side / bins for side, bins in zip(sides, form.size, strict=True)]
        counts = [form.samples or int(np.ceil(step)) for step in steps]
        for i, j in np.ndindex(rows, columns):
            for a in range(counts[0]):
                for b in range(counts[1]):
                    down = taps(top + i * steps[0] + (a + 0.5) * steps[0] / counts[0], height)
                    across = taps(left + j * steps[1] + (b + 0.5) * steps[1] / counts[1], width)
                    for (row, v), (column, w) in ((p, q) for p in down for q in across):
                        y[r, :, i, j] += v * w * x[int(image), :, row, column]
            y[r, :, i, j] /= max(counts[0] * counts[1], 1)
    return y


@pytest.mark.parametrize(
    "image, size, scale, samples, aligned",
    [
        *thorough([((2, 6, 20, 33), (7, 7), 1.0, 0, False)]),
        ((2, 6, 20, 33), (7, 5), 0.5, 2, True),
        *thorough([((1, 3, 5, 3), (2, 3), 1.0, 3, False)]),
        ((1, 1, 1, 1), (1, 1), 1.0, 0, True),
    ],
)
def test_samples_one_by_one(image, size, scale, samples, aligned):
    height, width = image[2:]
    low = RNG.uniform(-4, [width, height], (9, 2)) / scale
    high = low + RNG.uniform(0, [width, height], (9, 2)) / scale
    high[0] = low[0]  # a box without extent
    low[1], high[1] = (-30, -30), (-20, -20)  # off the image
    low[2], high[2] = (-2 / scale, -2 / scale), ((width + 3) / scale, (height + 3) / scale)
    boxes = np.column_stack([RNG.integers(0, image[0], 9), low, high]).astype("float32")
    x = RNG.standard_normal(image, dtype="float32")
    form = Bins(image, len(boxes), size, scale, samples, aligned)
    # float32 places samples to 1e-6 pixels, and a step from pixel to pixel is up to 5.
    np.testing.assert_allclose(pooled(form, x, boxes), expected(form, x, boxes), atol=3e-5)


def test_pixels_that_no_bin_reads_spread_nothing():
    x = np.full((1, 1, 8, 8), np.nan, "float32")
    x[..., 2:5, 2:5] = 3
    form = Bins(x.shape, 2, (2, 2), 1.0, 2, True)
    boxes = np.array([[0, 2.5, 2.5, 3.5, 3.5], [0, 5, 5, 7, 7]], "float32")
    within, unknown = pooled(form, x, boxes)
    np.testing.assert_array_equal(within, np.full((1, 2, 2), 3, "float32"))
    assert np.isnan(unknown).all()


def test_an_image_that_is_not_there_is_the_nearest():
    x = RNG.standard_normal((2, 1, 4, 4), dtype="float32")
    form = Bins(x.shape, 2, (1, 1), 1.0, 1, False)
    boxes = np.array([[-5, 1, 1, 2, 2], [9, 1, 1, 2, 2]], "float32")
    right = np.array([[0, 1, 1, 2, 2], [1, 1, 1, 2, 2]], "float32")
    np.testing.assert_array_equal(pooled(form, x, boxes), pooled(form, x, right))
