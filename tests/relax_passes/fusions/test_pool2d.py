"""Pooling as one operator."""

from hetero_tvm.ops.pool2d import Pool2d
from hetero_tvm.relax_passes.fusions.pool2d import FusePool2d
from tests.relax_passes.graphs import op
from tests.relax_passes.rewrite import Rewrite, kernel


class TestFusePool2d(Rewrite):
    rule = FusePool2d()
    inputs = {"x": (1, 3, 6, 6)}

    def before(self, x):
        return op.mean(op.nn.max_pool2d(x, (2, 2), (2, 2)), [2, 3], keepdims=True)

    def expected(self, x):
        largest = kernel(Pool2d(1, 3, 6, 6, (2, 2), (2, 2), (0, 0, 0, 0), (3, 3), "max"), x)
        return kernel(Pool2d(1, 3, 3, 3, (3, 3), (1, 1), (0, 0, 0, 0), (1, 1), "avg"), largest)
