"""Volumes of another size as resizes of images: the same numbers, whatever changes."""

import numpy as np
import pytest

from hetero_tvm.relax_passes.forms.volumes.resize import ResizeVolumes
from tests.relax_passes.compiled import floats, module_of, result, rewritten
from tests.relax_passes.graphs import op
from tests.relax_passes.rewrite import Rewrite, bind
from tests.selection import thorough

X = floats(2, 3, 4, 5, 6)


def both(size, x=X, **attributes):
    """Results before and after the rule, and the graph behind it."""

    def build(x):
        return op.image.resize3d(x, size, **attributes)

    after, _ = rewritten(build, [x], [ResizeVolumes()])
    return result(module_of(build, x), [x]), result(after, [x]), after.script(show_meta=False)


@pytest.mark.parametrize("size", [(8, 10, 12), (3, 5, 7), (4, 9, 6), (4, 5, 6)])
@pytest.mark.parametrize("how", ["half_pixel", "align_corners", "asymmetric"])
def test_interpolation(size, how):
    before, after, graph = both(size, coordinate_transformation_mode=how)
    assert "resize3d" not in graph
    # Three interpolations one after another, where the operator has a sum of eight products.
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rounding", [*thorough(["floor", "ceil"]), "round_prefer_floor"])
def test_neighbours(rounding):
    more = {"method": "nearest_neighbor", "coordinate_transformation_mode": "asymmetric"}
    before, after, graph = both((7, 3, 11), rounding_method=rounding, **more)
    assert "resize3d" not in graph
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize(
    "x, size", [*thorough([(floats(1, 2, 1, 2, 1), (3, 4, 4))]), (X, (1, 5, 6)), (X, (1, 1, 1))]
)
def test_single_slices_and_pixels(x, size):
    before, after, _ = both(size, x=x)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_cubes_stay():
    assert "resize3d" in both((8, 10, 12), method="cubic")[2]


class TestResizeVolumes(Rewrite):
    rule = ResizeVolumes()
    inputs = {"x": (2, 3, 4, 5, 6)}

    def before(self, x):
        return op.image.resize3d(x, (8, 5, 12))

    def expected(self, x):
        planes = bind(op.reshape(x, (2, 12, 5, 6)))
        wide = bind(op.image.resize2d(planes, (5, 12)))
        deep = bind(op.image.resize2d(bind(op.reshape(wide, (6, 1, 4, 60))), (8, 60)))
        return op.reshape(deep, (2, 3, 8, 5, 12))
