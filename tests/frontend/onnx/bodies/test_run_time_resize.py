"""Resize by values: equal to ONNX's own evaluator for every interpolation."""

import numpy as np
import pytest

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import against_reference, run_onnxruntime, run_tvm, text_model


def test_scales():
    forms = {
        "a": 'mode = "nearest", nearest_mode = "floor", coordinate_transformation_mode = "asymmetric"',
        "b": 'mode = "linear", coordinate_transformation_mode = "half_pixel_symmetric"',
        "c": 'mode = "cubic", exclude_outside = 1',
        "d": 'mode = "linear", antialias = 1',
        "e": 'mode = "cubic", antialias = 1, cubic_coeff_a = -0.5',
    }
    nodes = "".join(f'{name} = Resize <{form}> (x, "", scales)\n' for name, form in forms.items())
    outputs = ", ".join(f"float[1,1,3,9] {name}" for name in forms)
    model = text_model(f"g (float[1,1,5,6] x, float[4] scales) => ({outputs}) {{ {nodes} }}", opset=19)
    x = np.random.default_rng(0).standard_normal((1, 1, 5, 6), np.float32)
    against_reference(model, {"x": x, "scales": np.array([1, 1, 0.7, 1.5], np.float32)}, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.thorough
def test_aligned_corners_of_broken_sizes(mode):
    model = text_model(
        f"""g (float[1,1,5,9] x, float[4] s) => (float[1,1,6,13] y) {{
          y = Resize <mode = "{mode}", coordinate_transformation_mode = "align_corners"> (x, "", s)
        }}""",
        opset=19,
    )
    x = np.random.default_rng(0).standard_normal((1, 1, 5, 9), np.float32)
    feeds = {"x": x, "s": np.array([1, 1, 1.3, 1.5], np.float32)}
    (expected,) = run_onnxruntime(model, feeds)
    np.testing.assert_allclose(run_tvm(import_onnx(model), feeds)[0], expected, atol=1e-5)


def test_sizes_and_regions():
    model = text_model(
        """g (float[1,2,4,6] x, int64[2] sizes, float[4] roi) => (float[1,2,2,3] a, float[1,2,2,3] b) {
          a = Resize <axes = [2, 3], keep_aspect_ratio_policy = "not_larger",
                      mode = "linear"> (x, "", "", sizes)
          b = Resize <axes = [2, 3], coordinate_transformation_mode = "tf_crop_and_resize", mode = "linear",
                      extrapolation_value = 10.0> (x, roi, "", sizes)
        }""",
        opset=19,
    )
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 6), np.float32)
    roi = np.array([0.4, 0.6, 1.2, 1.7], np.float32)
    against_reference(model, {"x": x, "sizes": np.array([2, 3]), "roi": roi}, atol=1e-5)


def test_large_matrices_are_refused():
    model = text_model(
        """g (float[1,1,4096] x, float[3] s) => (float[1,1,8192] y) {
          y = Resize <mode = "linear", antialias = 1> (x, "", s)
        }""",
        opset=19,
    )
    with pytest.raises(UnsupportedOperatorError, match="scale that comes at run time"):
        import_onnx(model)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_what_has_no_weight_is_not_read(mode):
    model = text_model(
        f"""g (float[1,1,4] x, float[3] s) => (float[1,1,8] y) {{
          y = Resize <mode = "{mode}", coordinate_transformation_mode = "asymmetric"> (x, "", s)
        }}""",
        opset=19,
    )
    inputs = {"x": np.array([[[1, 2, np.inf, 4]]], np.float32), "s": np.array([1, 1, 2], np.float32)}
    (y,) = run_onnxruntime(import_onnx(model).onnx_model, inputs)
    assert np.isfinite(y[0, 0, [0, 2, 6]]).all() and y[0, 0, 4] == np.inf
