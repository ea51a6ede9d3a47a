"""Images of another size as products or lookups: the same numbers."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.relax_passes.forms.resize import (
    PixelsAsCopies,
    ResizeAsKernel,
    ResizeAsOpenKernel,
    ResizeAsProducts,
)
from hetero_tvm.schedules.cpu.images.resize import emit_copies, emit_resize, neighbours
from hetero_tvm.schedules.cpu.symbolic.resize import emit_open_resize
from tests.relax_passes.compiled import floats, module_of, result, rewritten
from tests.relax_passes.graphs import constant, op, relax
from tests.relax_passes.rewrite import Rewrite
from tests.schedules.cpu.symbolic.helpers import choices_after_simplifying
from tests.selection import named, thorough


def resized(size, **options):
    return lambda x: op.image.resize2d(x, size, layout="NCHW", **options)


RESIZES = {
    "half pixels": ((8, 10), {"coordinate_transformation_mode": "half_pixel"}),
    "corners": ((9, 3), {"coordinate_transformation_mode": "align_corners"}),
    "one axis": ((4, 13), {"coordinate_transformation_mode": "asymmetric"}),
    "four times": ((16, 20), {"coordinate_transformation_mode": "half_pixel"}),
    "cubic": ((9, 11), {"method": "cubic"}),
    "neighbours": (
        (7, 13),
        {
            "method": "nearest_neighbor",
            "rounding_method": "floor",
            "coordinate_transformation_mode": "asymmetric",
        },
    ),
    "the same": ((4, 5), {"coordinate_transformation_mode": "half_pixel"}),
    "to one": ((1, 1), {"coordinate_transformation_mode": "pytorch_half_pixel"}),
}


@pytest.mark.parametrize("size, options", named(RESIZES, {"half pixels", "one axis", "cubic", "neighbours"}))
def test_images_of_another_size(size, options):
    x = [floats(2, 3, 4, 5)]
    after, report = rewritten(resized(size, **options), x, [ResizeAsProducts()])
    assert report.misses == [] and "resize2d" not in after.script(show_meta=False)
    expected = result(module_of(resized(size, **options), *x), x)
    np.testing.assert_allclose(result(after, x), expected, rtol=1e-5, atol=1e-5)


def test_repeated_pixels_stay():
    x = [floats(1, 2, 3, 4)]
    options = {"method": "nearest_neighbor", "coordinate_transformation_mode": "asymmetric"}
    after, _ = rewritten(resized((6, 8), **options), x, [ResizeAsProducts()])
    assert "resize2d" in after.script(show_meta=False)


class TestResizeAsProducts(Rewrite):
    rule = ResizeAsProducts()
    inputs = {"x": (1, 3, 2, 5)}

    def before(self, x):
        return op.image.resize2d(x, (4, 5), layout="NCHW", coordinate_transformation_mode="half_pixel")

    def expected(self, x):
        return op.matmul(constant([[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0]]), x)


# as a kernel -----------------------------------------------------------------------------------------
def _as_kernel():
    machine = CpuModel("a", lanes=8)
    return ResizeAsKernel(neighbours, lambda *of: emit_resize(machine, *of))


@pytest.mark.parametrize("name", [*thorough(["half pixels"]), "corners", "one axis", "to one"])
def test_kernels_of_neighbours(name):
    size, options = RESIZES[name]
    x = [floats(2, 3, 4, 5)]
    after, report = rewritten(resized(size, **options), x, [_as_kernel()])
    assert report.misses == [] and "resize2d" not in after.script(show_meta=False)
    expected = result(module_of(resized(size, **options), *x), x)
    np.testing.assert_allclose(result(after, x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["cubic", "neighbours", "the same"])
def test_other_methods_are_no_kernels(name):
    size, options = RESIZES[name]
    after, _ = rewritten(resized(size, **options), [floats(2, 3, 4, 5)], [_as_kernel()])
    assert "resize2d" in after.script(show_meta=False)


class TestResizeAsKernel(Rewrite):
    rule = _as_kernel()
    inputs = {"x": (1, 3, 2, 5)}

    def before(self, x):
        return op.image.resize2d(x, (4, 5), layout="NCHW", coordinate_transformation_mode="half_pixel")

    def expected(self, x):
        rows = constant([[0, 0, 0, 1], [0, 1, 1, 1]], "int32")
        weights = constant([[0.5, 0.75, 0.25, 0.5], [0.5, 0.25, 0.75, 0.5]])
        axis = neighbours(2, 4, "half_pixel")
        function = relax.BlockBuilder.current().add_func(self.rule.kernel((3, 2, 5), axis, None), "resize")
        operands = [op.reshape(x, (3, 2, 5)), rows, weights]
        result = relax.call_tir(function, operands, out_ty=relax.TensorType((3, 4, 5), "float32"))
        return op.reshape(result, (1, 3, 4, 5))


# as copies -------------------------------------------------------------------------------------------
def _as_copies():
    machine = CpuModel("a", lanes=8)
    return PixelsAsCopies(lambda *of: emit_copies(machine, *of))


@pytest.mark.parametrize("mode, rounding", [("half_pixel", "round_prefer_floor"), ("asymmetric", "floor")])
def test_copies_of_pixels(mode, rounding):
    options = dict(zip(("coordinate_transformation_mode", "rounding_method"), (mode, rounding), strict=True))
    build, x = resized((12, 10), method="nearest_neighbor", **options), [floats(2, 3, 4, 5)]
    after, report = rewritten(build, x, [_as_copies()])
    assert report.misses == [] and "resize2d" not in after.script(show_meta=False)
    np.testing.assert_array_equal(result(after, x), x[0].repeat(3, axis=2).repeat(2, axis=3))


@pytest.mark.parametrize("mode, rounding", [("half_pixel", "floor"), ("asymmetric", "round")])
def test_pixels_elsewhere_are_no_copies(mode, rounding):
    options = dict(zip(("coordinate_transformation_mode", "rounding_method"), (mode, rounding), strict=True))
    build = resized((12, 10), method="nearest_neighbor", **options)
    after, _ = rewritten(build, [floats(2, 3, 4, 5)], [_as_copies()])
    assert "resize2d" in after.script(show_meta=False)


class TestPixelsAsCopies(Rewrite):
    rule = _as_copies()
    inputs = {"x": (1, 3, 2, 5)}

    def before(self, x):
        options = {"method": "nearest_neighbor", "coordinate_transformation_mode": "asymmetric"}
        return op.image.resize2d(x, (4, 5), layout="NCHW", rounding_method="floor", **options)

    def expected(self, x):
        function = relax.BlockBuilder.current().add_func(
            self.rule.kernel((1, 3, 2, 5), (2, 1), "float32"), "copies"
        )
        return relax.call_tir(function, [x], out_ty=relax.TensorType((1, 3, 4, 5), "float32"))


# as a kernel of any extents --------------------------------------------------------------------------
def _as_open_kernel():
    machine = CpuModel("a", lanes=8)
    return ResizeAsOpenKernel(lambda *of: emit_open_resize(machine, *of))


@pytest.mark.parametrize(
    "name",
    [*thorough(["half pixels", "four times"]), "corners", "one axis", *thorough(["to one"]), "the same"],
)
def test_open_kernels_of_neighbours(name):
    size, options = RESIZES[name]
    x = [floats(2, 3, 4, 5)]
    after, report = rewritten(resized(size, **options), x, [_as_open_kernel()])
    assert report.misses == [] and "resize2d" not in after.script(show_meta=False)
    expected = result(module_of(resized(size, **options), *x), x)
    np.testing.assert_allclose(result(after, x), expected, rtol=1e-5, atol=1e-5)


def test_the_simplifier_does_not_copy_choices():
    """It wrote the choice of a neighbour wherever its place was used, 490 times in all."""
    size, options = RESIZES["to one"]
    after, _ = rewritten(resized(size, **options), [floats(2, 3, 4, 5)], [_as_open_kernel()])
    (kernel,) = (one for one in after.functions.values() if isinstance(one, tirx.PrimFunc))
    assert choices_after_simplifying(kernel) < 60


@pytest.mark.thorough
def test_neighbours_without_weight_are_not_read():
    """Every second pixel of twice as many is a pixel of before, whatever stands beside it."""
    x = floats(1, 1, 5, 20)
    x[0, 0, 2, 3], x[0, 0, 2, 8] = np.nan, np.inf
    build = resized((10, 40), coordinate_transformation_mode="asymmetric")
    after, _ = rewritten(build, [x], [_as_open_kernel()])
    np.testing.assert_array_equal(result(after, [x])[:, :, ::2, ::2], x)


@pytest.mark.parametrize("name", ["cubic", "neighbours"])
def test_other_methods_are_no_open_kernels(name):
    size, options = RESIZES[name]
    after, _ = rewritten(resized(size, **options), [floats(2, 3, 4, 5)], [_as_open_kernel()])
    assert "resize2d" in after.script(show_meta=False)


class TestResizeAsOpenKernel(Rewrite):
    rule = _as_open_kernel()
    inputs = {"x": (1, 3, 2, 5)}

    def before(self, x):
        return op.image.resize2d(x, (4, 7), layout="NCHW", coordinate_transformation_mode="half_pixel")

    def expected(self, x):
        function = self.rule.kernel((1, 3, 2, 5), (4, 7), "half_pixel")
        called = relax.BlockBuilder.current().add_func(function, "resize")
        kinds = (((2, 7), "int32"), ((2, 7), "float32"), ((1, 3, 4, 7), "float32"))
        call = relax.call_tir(called, [x], out_ty=[relax.TensorType(*kind) for kind in kinds])
        return relax.TupleGetItem(relax.BlockBuilder.current().emit(call), 2)
