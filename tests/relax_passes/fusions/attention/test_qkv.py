"""Projections of one input that one attention uses become one product."""

import numpy as np

from hetero_tvm.ops.attention import Attention
from hetero_tvm.relax_passes.fusions.attention.qkv import MergeQkv
from tests.relax_passes.graphs import constant, op, weights
from tests.relax_passes.rewrite import Rewrite, kernel


class TestMergeQkv(Rewrite):
    rule = MergeQkv()
    inputs = {"x": (2, 4, 6)}
    parts = [constant(weights(6, 15, seed=seed)) for seed in range(3)]

    def before(self, x):
        query, key, value = (op.matmul(x, part) for part in self.parts)
        return kernel(Attention(2, 3, 4, 4, 5, 0.5, 3), query, key, value)

    def expected(self, x):
        merged = constant(np.concatenate([part.value.numpy() for part in self.parts], 1))
        return kernel(Attention(2, 3, 4, 4, 5, 0.5, 3, packed=True), op.matmul(x, merged))
