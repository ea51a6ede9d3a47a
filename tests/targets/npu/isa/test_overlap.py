"""Overlap of strided accesses against sets of bytes."""

import numpy as np

from hetero_tvm.targets.npu.isa.encoding import Access
from hetero_tvm.targets.npu.isa.overlap import overlap


def test_overlap_of_random_regions_against_sets_of_bytes():
    rng = np.random.default_rng(0)

    def random_access():
        extents = tuple(int(n) for n in rng.integers(1, 5, 3))
        strides = tuple(int(s) for s in rng.integers(-20, 21, 3))
        return Access("ub", 200 + int(rng.integers(0, 40)), extents, strides, int(rng.integers(1, 5)), False)

    def covered(a):
        grid = np.indices(a.extents).reshape(3, -1).T @ np.array(a.strides)
        return {a.base + int(g) + i for g in grid for i in range(a.run)}

    for _ in range(700):
        a, b = random_access(), random_access()
        assert overlap(a, b) == bool(covered(a) & covered(b)), (a, b)
