"""Channels that become pixels, in both orders."""

import numpy as np
import pytest

from hetero_tvm.ops.interleave import Interleave
from hetero_tvm.relax_passes.fusions.pixel_shuffle import FusePixelShuffle
from tests.relax_passes.compiled import module_of, result, rewritten
from tests.relax_passes.graphs import op
from tests.relax_passes.rewrite import Rewrite, kernel

RULE = FusePixelShuffle(lambda op: True)


def by_channel(x, r=2, s=3):
    n, c, h, w = (int(extent) for extent in x.ty.shape)
    apart = op.reshape(x, (n, c // (r * s), r, s, h, w))
    return op.reshape(op.permute_dims(apart, [0, 1, 4, 2, 5, 3]), (n, c // (r * s), h * r, w * s))


def by_place(x, r=2, s=3):
    n, c, h, w = (int(extent) for extent in x.ty.shape)
    apart = op.reshape(x, (n, r, s, c // (r * s), h, w))
    return op.reshape(op.permute_dims(apart, [0, 3, 4, 1, 5, 2]), (n, c // (r * s), h * r, w * s))


@pytest.mark.parametrize("shuffle", [by_channel, by_place])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_the_pixels_stay(shuffle, dtype):
    x = np.random.default_rng(0).integers(-99, 99, (2, 12, 3, 5)).astype(dtype)
    after, _ = rewritten(shuffle, [x], [RULE])
    assert "permute_dims" not in str(after["main"])
    np.testing.assert_array_equal(result(after, [x]), result(module_of(shuffle, x), [x]))


@pytest.mark.parametrize(
    "build",
    [
        lambda x: op.reshape(
            op.permute_dims(op.reshape(x, (2, 2, 2, 3, 3, 5)), [0, 1, 4, 3, 5, 2]), (2, 2, 9, 10)
        ),
        lambda x: op.permute_dims(op.reshape(x, (2, 2, 2, 3, 3, 5)), [0, 1, 4, 2, 5, 3]),
    ],
    ids=["another order", "no image"],
)
def test_others_stay(build):
    after, _ = rewritten(build, [np.zeros((2, 12, 3, 5), "float32")], [RULE])
    assert "permute_dims" in str(after["main"])


class TestFusePixelShuffle(Rewrite):
    rule = RULE
    inputs = {"x": (1, 8, 3, 5)}

    def before(self, x):
        return by_channel(x, 2, 2)

    def expected(self, x):
        return kernel(Interleave(1, 2, 1, 3, 5, (2, 2), (0, 0), (6, 10)), x)
