"""Softmax over the last axis as one operator."""

from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.relax_passes.fusions.softmax import FuseSoftmax
from tests.relax_passes.graphs import op
from tests.relax_passes.rewrite import Rewrite, kernel


class TestFuseSoftmax(Rewrite):
    rule = FuseSoftmax()

    def before(self, x):
        return op.nn.softmax(x, axis=-1)

    def expected(self, x):
        return kernel(Softmax((2, 3), 4), x)
