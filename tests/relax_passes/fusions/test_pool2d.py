"""Pooling as one operator."""

import pytest

from hetero_tvm.ops.pool2d import Pool2d
from hetero_tvm.relax_passes.fusions.pool2d import FusePool2d
from tests.relax_passes.compiled import check_results, floats
from tests.relax_passes.graphs import calls, fuse, module, op
from tests.relax_passes.rewrite import Rewrite, kernel
from tests.selection import named

CASES = {
    "max": lambda x: op.nn.max_pool2d(x, (3, 2), (2, 1), (1, 0, 0, 1)),
    "max, rounded up": lambda x: op.nn.max_pool2d(x, (2, 2), (2, 2), ceil_mode=True),
    "average": lambda x: op.nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1, 1, 1)),
    "average, padding counts": lambda x: op.nn.avg_pool2d(
        x, (3, 3), (2, 2), (1, 1, 1, 1), count_include_pad=True
    ),
    "global": lambda x: op.mean(x, [2, -1], keepdims=True),
}


@pytest.mark.parametrize("build", named(CASES, {"max", "average", "global"}))
def test_the_numbers_stay(build):
    check_results(build, [floats(2, 3, 7, 6)], FusePool2d(), gone="nn.max_pool2d nn.avg_pool2d mean")


@pytest.mark.parametrize(
    "build",
    [
        lambda x: op.mean(x, [1], keepdims=True),
        lambda x: op.mean(x, [2, 3]),
        lambda x: op.nn.max_pool2d(x, (2, 2), dilation=(2, 2)),
        lambda x: op.nn.max_pool2d(x, (2, 2), layout="NHWC"),
    ],
)
def test_other_poolings_and_means_stay(build):
    before = module({"x": (2, 3, 7, 6)}, lambda emit, x: build(x))
    assert calls(fuse(before, FusePool2d())[0]) == calls(before)


class TestFusePool2d(Rewrite):
    rule = FusePool2d()
    inputs = {"x": (1, 3, 6, 6)}

    def before(self, x):
        return op.mean(op.nn.max_pool2d(x, (2, 2), (2, 2)), [2, 3], keepdims=True)

    def expected(self, x):
        largest = kernel(Pool2d(1, 3, 6, 6, (2, 2), (2, 2), (0, 0, 0, 0), (3, 3), "max"), x)
        return kernel(Pool2d(1, 3, 3, 3, (3, 3), (1, 1), (0, 0, 0, 0), (1, 1), "avg"), largest)
