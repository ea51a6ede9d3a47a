"""Images of another size, and repeated tensors, at all sizes: kernels without constants of one size."""

import numpy as np
import pytest
from onnx import numpy_helper
from onnxruntime import InferenceSession

import hetero_tvm
from hetero_tvm.api import build_model, import_model, optimize_model
from tests.frontend.onnx.helpers import text_model

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
        "half_pixel",
        "align_corners",
        *(pytest.param(m, marks=pytest.mark.thorough) for m in ("asymmetric", "half_pixel_symmetric")),
    ],
)
def test_images_of_another_size(tmp_path, mode):
    model = text_model(TWICE % mode)
    scales = np.array([1, 1, 2, 3], np.float32)
    model.graph.initializer.append(numpy_helper.from_array(scales, "scales"))
    span = hetero_tvm.Span
    shapes = [(1, 3, 2, 2), (2, 3, 7, 20), (4, 3, 20, 50), (1, 3, 19, 3)]
    check(model, tmp_path, (span(1, 4), 3, span(2, 20), span(2, 50)), shapes, {"resize"})


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
