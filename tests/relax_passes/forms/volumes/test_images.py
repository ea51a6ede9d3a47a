"""Operators on volumes made of images: the same numbers, on the images."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.canonical.views import MergeTransposes
from hetero_tvm.relax_passes.forms.volumes.images import VolumesAsImages
from tests.relax_passes.compiled import floats, operators, result, rewritten
from tests.relax_passes.graphs import constant, op, weights
from tests.relax_passes.rewrite import Rewrite, bind

SHAPE = (4, 3, 5, 6)  # the images of two volumes of two slices


def volume(images):
    batch, *image = [int(e) for e in images.ty.shape]
    return op.permute_dims(op.reshape(images, (2, batch // 2, *image)), [0, 2, 1, 3, 4])


def behind(volume):
    """Something that reads the volume's slices first, as a convolution does."""
    return op.permute_dims(volume, [0, 2, 1, 3, 4])


def normalized(x):
    statistics = [constant(np.abs(weights(3, seed=n)) + 0.5) for n in range(4)]
    return relax.TupleGetItem(op.nn.batch_norm(volume(x), *statistics, axis=1), 0)


ON_IMAGES = {
    "activation": lambda x, y: op.nn.silu(volume(x)),
    "bounds": lambda x, y: op.clip(volume(x), -0.5, 0.5),
    "sum": lambda x, y: op.add(op.nn.relu(volume(x)), volume(y)),
    "scalar": lambda x, y: op.multiply(constant(2.0), volume(x)),
    "one number": lambda x, y: op.multiply(constant(np.full((1, 1, 1, 1, 1), 2.0)), volume(x)),
    "channels": lambda x, y: op.add(volume(x), constant(weights(1, 3, 1, 1, 1))),
    "planes": lambda x, y: op.add(constant(weights(3, 1, 5, 6)), volume(x)),
    "gate": lambda x, y: op.multiply(
        volume(x), op.sigmoid(op.mean(op.reshape(y, (2, 3, 2, 5, 6)), [2, 3, 4], True))
    ),
    "other": lambda x, y: op.subtract(op.reshape(y, (2, 3, 2, 5, 6)), volume(x)),
    "joined": lambda x, y: op.concat([volume(x), op.reshape(y, (2, 3, 2, 5, 6)), volume(y)], 1),
    "largest": lambda x, y: op.nn.max_pool3d(volume(x), (2, 3, 3), (1, 2, 1), (1, 1, 0, 0, 1, 1)),
    "largest of planes": lambda x, y: op.nn.max_pool3d(volume(x), (1, 2, 2), (1, 2, 2)),
    "mean of windows": lambda x, y: op.nn.avg_pool3d(volume(x), 2, 2, 1, count_include_pad=True),
    "zeros": lambda x, y: op.nn.pad(volume(x), [0, 0, 0, 0, 0, 0, 1, 2, 0, 1]),
    "norm": lambda x, y: normalized(x),
    "larger": lambda x, y: op.image.resize3d(volume(x), (4, 10, 6)),
    "smaller": lambda x, y: op.image.resize3d(
        volume(x), (3, 3, 5), method="nearest_neighbor", rounding_method="floor"
    ),
}
ELSEWHERE = {
    "slices added": lambda x, y: op.nn.pad(volume(x), [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]),
    "along depth": lambda x, y: op.concat([volume(x), volume(y)], 2),
    "numbers of slices": lambda x, y: op.add(volume(x), constant(weights(2, 1, 1))),
    "numbers of volumes": lambda x, y: op.add(volume(x), constant(weights(2, 1, 1, 1, 1))),
}


def numbers_and_moves(build):
    arrays = [floats(*SHAPE), floats(*SHAPE)]
    after, report = rewritten(build, arrays, [VolumesAsImages(), MergeTransposes()])
    assert report.misses == []
    before, _ = rewritten(build, arrays, [])
    np.testing.assert_allclose(result(after, arrays), result(before, arrays), rtol=1e-5, atol=1e-6)
    return operators(after).count("relax.permute_dims")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ON_IMAGES)
def test_the_numbers_stay_and_volumes_go(name):
    others = {"other": 1, "joined": 1}.get(name, 0)
    assert numbers_and_moves(lambda x, y: behind(ON_IMAGES[name](x, y))) == others


@pytest.mark.thorough
@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_knows_slices_stays(name):
    assert numbers_and_moves(lambda x, y: behind(ELSEWHERE[name](x, y))) >= 1


@pytest.mark.thorough
@pytest.mark.parametrize("keepdims", [False, True])
def test_means_of_volumes(keepdims):
    assert numbers_and_moves(lambda x, y: op.mean(volume(x), [2, 3, 4], keepdims)) == 0


class TestVolumesAsImages(Rewrite):
    rule = VolumesAsImages()
    inputs = {"x": SHAPE, "y": SHAPE}

    def before(self, x, y):
        return op.add(volume(x), volume(y))

    def expected(self, x, y):
        return volume(bind(op.add(x, y)))
