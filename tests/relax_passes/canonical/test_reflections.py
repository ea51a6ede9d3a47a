"""Positions beyond an image, reflected: PyTorch's numbers."""

from typing import ClassVar

import numpy as np
import pytest

from hetero_tvm.relax_passes.canonical.reflections import ReflectPositions
from tests.relax_passes.compiled import operators, result, rewritten
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite, bind

torch = pytest.importorskip("torch")


class TestReflectPositions(Rewrite):
    rule = ReflectPositions()
    inputs: ClassVar = {"x": (2, 3, 4, 5), "grid": (2, 2, 6, 7)}

    def before(self, x, grid):
        return op.image.grid_sample(x, grid, "bilinear", "NCHW", "reflection", True)

    def expected(self, x, grid):
        from_edge = bind(op.add(grid, constant(1.0)))
        rounds = op.floor(op.divide(from_edge, constant(4.0)))
        way = bind(op.subtract(from_edge, op.multiply(rounds, constant(4.0))))
        back = op.minimum(way, op.subtract(constant(4.0), way))
        return op.image.grid_sample(x, op.subtract(back, constant(1.0)), "bilinear", "NCHW", "border", True)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("method", ["bilinear", "nearest"])
def test_positions_far_outside(method, aligned):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    grid = rng.uniform(-7, 7, (2, 2, 9, 8)).astype(np.float32)
    grid[0, :, 0, :5] = [-1, 1, 3, -3, 5]

    def build(x, grid):
        return op.image.grid_sample(x, grid, method, "NCHW", "reflection", aligned)

    after, report = rewritten(build, [x, grid], [ReflectPositions()])
    assert report.misses == [] and "relax.floor" in operators(after)
    places = torch.from_numpy(grid).permute(0, 2, 3, 1)
    wanted = torch.nn.functional.grid_sample(torch.from_numpy(x), places, method, "reflection", aligned)
    found = result(after, [x, grid])
    if method == "nearest":  # which of two pixels is nearer may be a matter of a last bit
        assert np.isclose(found, wanted.numpy(), rtol=0, atol=1e-5).mean() > 0.98
    else:
        np.testing.assert_allclose(found, wanted.numpy(), rtol=0, atol=2e-5)


def test_cubic_steps_stay():
    x, grid = np.zeros((1, 1, 4, 5), np.float32), np.zeros((1, 2, 2, 2), np.float32)

    def build(x, grid):
        return op.image.grid_sample(x, grid, "bicubic", "NCHW", "reflection", False)

    after, _ = rewritten(build, [x, grid], [ReflectPositions()])
    assert "relax.floor" not in operators(after)
