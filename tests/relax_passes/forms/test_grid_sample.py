"""Images read at computed positions, as lookups of pixels: the same numbers, within the image and beyond."""

import numpy as np
import pytest

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.relax_passes.forms.grid_sample import GridSampleAsKernel, GridSampleAsTake
from hetero_tvm.schedules.cpu.images.grid_sample import Sampling, emit_grid_sample
from tests.relax_passes.compiled import module_of, result, rewritten
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite, any_kernel, bind

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 5, 7)).astype(np.float32)
# Within the image, beyond it on all sides, and exactly at pixels and borders.
GRID = RNG.uniform(-1.6, 1.6, (2, 2, 4, 6)).astype(np.float32)
GRID[0, :, 0] = [-1, 1, 0, -1.0 + 2 / 7, 1 - 1 / 5, 0.25]


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("aligned", [True, False])
def test_the_results_stay(method, padding, aligned):
    def build(x, grid):
        return op.image.grid_sample(x, grid, method, "NCHW", padding, aligned)

    after, report = rewritten(build, [X, GRID], [GridSampleAsTake()])
    assert report.misses == [] and "grid_sample(" not in after.script(show_meta=False)
    before = result(module_of(build, X, GRID), [X, GRID])
    # Positions are rounded in another order: 1e-6 pixels, times the step from one pixel to the next.
    np.testing.assert_allclose(result(after, [X, GRID]), before, rtol=0, atol=1e-5)


def kernel(*form):
    return emit_grid_sample(CpuModel("test", lanes=8, registers=16, threads=2), Sampling(*form))


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding, aligned", [("zeros", True), ("zeros", False), ("border", False)])
def test_the_kernel_gives_the_same(method, padding, aligned):
    def build(x, grid):
        return op.image.grid_sample(x, grid, method, "NCHW", padding, aligned)

    after, _ = rewritten(build, [X, GRID], [GridSampleAsKernel(kernel)])
    assert "image.grid_sample" not in after.script(show_meta=False)
    before = result(module_of(build, X, GRID), [X, GRID])
    np.testing.assert_allclose(result(after, [X, GRID]), before, rtol=0, atol=1e-5)


class TestGridSampleAsKernel(Rewrite):
    rule = GridSampleAsKernel(kernel)
    inputs = {"x": (2, 3, 4, 5), "grid": (2, 2, 6, 7)}

    def before(self, x, grid):
        return op.image.grid_sample(x, grid, "bilinear", "NCHW", "zeros", True)

    def expected(self, x, grid):
        return any_kernel("grid_sample", (2, 3, 6, 7), "float32", x, grid)


@pytest.mark.parametrize(
    "method, padding, side, reason",
    [
        ("bicubic", "zeros", 5, "between pixels by bicubic"),
        ("bilinear", "reflection", 5, "beyond the image by reflection"),
        ("bilinear", "zeros", 50, "16 bits are too few for positions in an image of 50 x 50"),
    ],
)
def test_left_alone(method, padding, side, reason):
    x = np.zeros((1, 1, side, side), np.float32)
    grid = np.zeros((1, 3, 3, 2), np.float32)

    def build(x, grid):
        return op.image.grid_sample(x, op.permute_dims(grid, [0, 3, 1, 2]), method, "NCHW", padding, True)

    _, report = rewritten(build, [x, grid], [GridSampleAsTake()])
    assert [reason in miss["reason"] for miss in report.misses] == [True]


class TestGridSampleAsTake(Rewrite):
    rule = GridSampleAsTake()
    inputs = {"x": (2, 3, 4, 5), "grid": (2, 2, 6, 7)}

    def before(self, x, grid):
        return op.image.grid_sample(x, grid, "bilinear", "NCHW", "zeros", True)

    def expected(self, x, grid):
        around = (2, 2, 2, 6, 7)
        index = bind(any_kernel("pixels", around, "int32", grid, constant([[[0]], [[20]]], "int32")))
        weight = bind(any_kernel("weights", around, "float32", grid))
        table = op.reshape(op.permute_dims(x, [0, 2, 3, 1]), (40, 3))
        taken = op.take(table, op.reshape(index, (336,)), 0, mode="wrap")
        taken = op.reshape(taken, (*around, 3))
        mixed = any_kernel("weighted_pixels", (2, 6, 7, 3), "float32", taken, weight)
        return op.permute_dims(mixed, [0, 3, 1, 2])
