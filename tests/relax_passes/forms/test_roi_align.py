"""Pooled boxes as a kernel: the same numbers, and what the kernel cannot do stays."""

import numpy as np
import pytest

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.relax_passes.forms.roi_align import RoiAlignAsKernel
from hetero_tvm.schedules.cpu.images.roi_align import Bins, emit_roi_align
from tests.relax_passes.compiled import module_of, result, rewritten
from tests.relax_passes.graphs import op
from tests.relax_passes.rewrite import Rewrite, any_kernel
from tests.selection import thorough

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 9, 11)).astype(np.float32)
BOXES = np.array([[0, 1, 2, 8, 7], [1, -3, 4, 5, 12], [1, 2.5, 2.5, 3, 3]], np.float32)


def kernel(*form):
    return emit_roi_align(CpuModel("test", lanes=8, registers=16, threads=2), Bins(*form))


@pytest.mark.parametrize("samples, aligned", [*thorough([(0, False)]), (0, True), (2, False)])
def test_the_kernel_gives_the_same(samples, aligned):
    def build(x, boxes):
        return op.vision.roi_align(x, boxes, (2, 3), 0.75, samples, aligned)

    after, _ = rewritten(build, [X, BOXES], [RoiAlignAsKernel(kernel)])
    assert "vision.roi_align" not in after.script(show_meta=False)
    before = result(module_of(build, X, BOXES), [X, BOXES])
    # Sums are taken in another order.
    np.testing.assert_allclose(result(after, [X, BOXES]), before, rtol=0, atol=1e-5)


def test_the_largest_sample_stays_with_the_operator():
    def build(x, boxes):
        return op.vision.roi_align(x, boxes, (2, 3), 1.0, 2, mode="max")

    after, _ = rewritten(build, [X, BOXES], [RoiAlignAsKernel(kernel)])
    assert "vision.roi_align" in after.script(show_meta=False)


class TestRoiAlignAsKernel(Rewrite):
    rule = RoiAlignAsKernel(kernel)
    inputs = {"x": (2, 3, 9, 11), "boxes": (4, 5)}

    def before(self, x, boxes):
        return op.vision.roi_align(x, boxes, (2, 3), 1.0, 2)

    def expected(self, x, boxes):
        return any_kernel("roi_align", (4, 3, 2, 3), "float32", x, boxes)
