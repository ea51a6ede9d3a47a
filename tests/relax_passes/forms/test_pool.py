"""Pooling of rows and volumes as that of images: the same numbers."""

import pytest

from hetero_tvm.relax_passes.forms.pool import PoolAsPool2d
from tests.relax_passes.compiled import check_results, floats
from tests.relax_passes.graphs import calls, fuse, module, op
from tests.relax_passes.rewrite import Rewrite
from tests.selection import named

GONE = "nn.max_pool1d nn.avg_pool1d nn.max_pool3d nn.avg_pool3d"
ROWS, VOLUMES = (2, 3, 17), (1, 2, 5, 6, 7)
CASES = {
    "max of rows": (ROWS, lambda x: op.nn.max_pool1d(x, 3, 2, (1, 0))),
    "means of rows, rounded up": (ROWS, lambda x: op.nn.avg_pool1d(x, 4, 3, (1, 2), ceil_mode=True)),
    "max of volumes": (VOLUMES, lambda x: op.nn.max_pool3d(x, (3, 2, 3), (2, 1, 2), (1, 0, 1, 0, 1, 1))),
    "means of volumes": (VOLUMES, lambda x: op.nn.avg_pool3d(x, (2, 3, 3), (1, 2, 1), (1, 1, 1, 1, 1, 1))),
    "means of volumes with padding": (
        VOLUMES,
        lambda x: op.nn.avg_pool3d(x, (3, 3, 3), (2, 2, 2), (1, 1, 1, 1, 1, 1), count_include_pad=True),
    ),
}


@pytest.mark.parametrize(
    "shape, build",
    named(CASES, {"max of rows", "means of rows, rounded up", "means of volumes with padding"}),
)
def test_the_numbers_stay(shape, build):
    check_results(build, [floats(*shape)], PoolAsPool2d(), gone=GONE)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: op.nn.max_pool1d(x, 2, dilation=2),
        lambda x: op.nn.max_pool1d(x, 2, layout="NWC"),
    ],
)
def test_other_poolings_stay(build):
    before = module({"x": ROWS}, lambda emit, x: emit(build(x)))
    assert calls(fuse(before, PoolAsPool2d())[0]) == calls(before)


class TestPoolAsPool2d(Rewrite):
    rule = PoolAsPool2d()
    inputs = {"x": (1, 2, 4, 6, 8)}

    def before(self, x):
        return op.nn.max_pool3d(x, (2, 3, 3), (2, 1, 2), (0, 1, 1, 0, 1, 1))

    def expected(self, x):
        planes = op.reshape(x, (1, 8, 6, 8))
        planes = op.nn.max_pool2d(planes, (3, 3), (1, 2), (1, 1, 1, 1))
        depths = op.reshape(planes, (1, 2, 4, 24))
        return op.reshape(op.nn.max_pool2d(depths, (2, 1), (2, 1), (0, 0, 0, 0)), (1, 2, 2, 6, 4))
