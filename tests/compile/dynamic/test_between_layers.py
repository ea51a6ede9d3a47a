"""What stands between layers of images and sequences, at all sizes: kernels without constants of one size."""

import numpy as np
import pytest
from onnx import numpy_helper
from onnxruntime import InferenceSession

import hetero_tvm
from hetero_tvm.api import build_model, import_model, optimize_model
from tests.frontend.onnx.helpers import text_model
from tests.selection import thorough

BACK = """
agraph (float[n, 3, h, w] x) => (float[n, 3, h, w] y) {
   p = AveragePool<kernel_shape=[2, 2], strides=[2, 2]>(x)
   all = Shape(x)
   y = Resize<mode="linear", coordinate_transformation_mode="%s">(p, , , all)
}"""
TWICE = """
agraph (float[n, 3, h, w] x) => (float[n, 3, a, b] y) {
   y = Resize<mode="linear", coordinate_transformation_mode="%s">(x, , scales)
}"""
TILED = "agraph (float[n, h, w] x) => (float[a, b, c] y) { y = Tile(x, scales) }"


def check(model, tmp_path, spans, shapes, kernels):
    optimized = optimize_model(import_model(model, shapes={"x": spans}))
    assert {task.name for task in optimized.tasks if task.op is None} == kernels
    net = hetero_tvm.load(build_model(optimized).export(tmp_path))
    reference = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for shape in shapes:
        x = np.random.default_rng(len(shape)).normal(size=shape).astype("float32")
        # ONNX Runtime places pixels in float32: 2e-5 at some 50 of them.
        np.testing.assert_allclose(net(x), reference.run(None, {"x": x})[0], atol=2e-5)


@pytest.mark.parametrize(
    "mode",
    [
        *thorough(["half_pixel"]),
        "align_corners",
        *(pytest.param(m, marks=pytest.mark.thorough) for m in ("asymmetric", "half_pixel_symmetric")),
    ],
)
def test_images_of_another_size(tmp_path, mode):
    model = text_model(TWICE % mode)
    scales = np.array([1, 1, 2, 3], np.float32)
    model.graph.initializer.append(numpy_helper.from_array(scales, "scales"))
    span = hetero_tvm.Span
    shapes = [(1, 3, 2, 2), (2, 3, 7, 20), (4, 3, 20, 50), (1, 3, 19, 3), (2, 3, 9, 1), (1, 3, 1, 1)]
    check(model, tmp_path, (span(1, 4), 3, span(1, 20), span(1, 50)), shapes, {"resize"})


@pytest.mark.thorough
def test_images_of_one_column(tmp_path):
    """Rows that threads write side by side: nothing is written beyond the end of one."""
    model = text_model(TWICE % "half_pixel")
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"))
    span = hetero_tvm.Span
    spans = (span(1, 40), 3, span(1, 9), span(1, 9))
    check(model, tmp_path, spans, [(27, 3, 8, 1), (13, 3, 7, 1), (13, 3, 8, 3)], {"resize"})


@pytest.mark.thorough
def test_images_of_the_size_of_others(tmp_path):
    span = hetero_tvm.Span
    spans = (span(1, 4), 3, span(4, 20, 2), span(4, 50, 2))
    model = text_model(BACK % "pytorch_half_pixel")
    check(model, tmp_path, spans, [(1, 3, 4, 4), (2, 3, 8, 20), (4, 3, 20, 50)], {"resize"})


@pytest.mark.parametrize("repeats", [(2, 1, 3), pytest.param((3, 2, 1), marks=pytest.mark.thorough)])
def test_repeated_tensors(tmp_path, repeats):
    model = text_model(TILED)
    model.graph.initializer.append(numpy_helper.from_array(np.array(repeats), "scales"))
    span = hetero_tvm.Span
    shapes = [(1, 1, 1), (3, 5, 7), (4, 9, 40)]
    check(model, tmp_path, (span(1, 4), span(1, 9), span(1, 40)), shapes, {"broadcast_to"})


NORMALIZED = """
agraph (float[n, 6, h, w] x) => (float[n, 6, h, w] y) {
   own = InstanceNormalization(x, s, b)
   y = Relu(own)
}"""


@pytest.mark.parametrize("height", [hetero_tvm.Span(1, 20), *thorough([1])])
def test_normalized_images(tmp_path, height):
    model = text_model(NORMALIZED)
    for name in "sb":
        values = np.random.default_rng(len(name)).normal(size=6).astype("float32")
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    spans = (hetero_tvm.Span(1, 4), 6, height, hetero_tvm.Span(2, 90))
    rows = [1, 1, 1] if height == 1 else [2, 20, 1]
    shapes = [(n, 6, h, w) for n, h, w in zip((1, 4, 2), rows, (2, 90, 33), strict=True)]
    check(model, tmp_path, spans, shapes, set())


SUMS = """
agraph (float[n, t, c] x) => (float[n, t, c] y) {
   first = CumSum(x, zero)
   second = CumSum<reverse=1>(first, one)
   third = CumSum<exclusive=1>(second, two)
   fourth = Constant<value_float=0.01>()
   y = Mul(third, fourth)
}"""


@pytest.mark.thorough
def test_running_sums(tmp_path):
    model = text_model(SUMS)
    for n, name in enumerate(("zero", "one", "two")):
        model.graph.initializer.append(numpy_helper.from_array(np.array(n), name))
    span = hetero_tvm.Span
    spans, shapes = (span(1, 5), span(1, 40), span(1, 70)), [(1, 1, 1), (2, 17, 33), (5, 40, 70), (1, 40, 3)]
    optimized = optimize_model(import_model(model, shapes={"x": spans}))
    net = hetero_tvm.load(build_model(optimized).export(tmp_path))
    for shape in shapes:
        x = np.random.default_rng(len(shape)).normal(size=shape).astype("float32")
        first = x.astype("float64").cumsum(0)[:, ::-1].cumsum(1)[:, ::-1]
        wanted = 0.01 * np.concatenate([np.zeros_like(first[..., :1]), first.cumsum(2)[..., :-1]], 2)
        # Three sums, each rounded to float32 of up to some hundred.
        np.testing.assert_allclose(net(x), wanted, atol=2e-5 * max(1.0, float(np.abs(wanted).max())))


COMPUTED = """
agraph (float[n, 8, h, w] x, float[10, 4, 3, 3] z) => (float[n, 10, a, b] y) {
   own = Conv<pads=[1, 0, 1, 2], group=2, strides=[2, 1]>(x, z)
   y = Relu(own)
}"""


@pytest.mark.thorough
def test_filters_that_are_computed(tmp_path):
    model = text_model(COMPUTED)
    spans = (hetero_tvm.Span(1, 3), 8, hetero_tvm.Span(3, 30), hetero_tvm.Span(1, 50))
    optimized = optimize_model(import_model(model, shapes={"x": spans, "z": (10, 4, 3, 3)}))
    net = hetero_tvm.load(build_model(optimized).export(tmp_path))
    reference = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for shape in ((1, 8, 3, 1), (2, 8, 17, 33), (3, 8, 30, 50)):
        random = np.random.default_rng(len(shape))
        x, z = (random.normal(size=s).astype("float32") for s in (shape, (10, 4, 3, 3)))
        np.testing.assert_allclose(net(x, z), reference.run(None, {"x": x, "z": z})[0], atol=2e-5)
