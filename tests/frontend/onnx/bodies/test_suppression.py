"""NonMaxSuppression of a declared number of boxes: equal to ONNX Runtime."""

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import operators, run_onnxruntime, text_model
from tests.selection import thorough


def model_of(total, count=8, center=0):
    return text_model(
        f"""g (float[2,{count},4] boxes, float[2,3,{count}] scores, int64[1] most, float[1] iou,
            float[1] least)
           => (int64[{total},3] y) {{
          y = NonMaxSuppression <center_point_box = {center}> (boxes, scores, most, iou, least)
        }}"""
    )


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("most", [2, 100])
def test_boxes_of_two_images_and_three_classes(center, most):
    random = np.random.default_rng(most + center)
    inputs = {
        "boxes": random.random((2, 8, 4), np.float32),
        "scores": random.random((2, 3, 8), np.float32),
        "most": np.array([most]),
        "iou": np.array([0.1], np.float32),
        "least": np.array([0.2], np.float32),
    }
    (expected,) = run_onnxruntime(model_of("N", center=center), inputs)
    (got,) = run_onnxruntime(import_onnx(model_of(len(expected), center=center)).onnx_model, inputs)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("center", [0, *thorough([1])])
def test_many_boxes_keep_the_operator(center):
    random = np.random.default_rng(center)
    inputs = {
        "boxes": random.random((2, 20, 4), np.float32),
        "scores": random.random((2, 3, 20), np.float32),
        "most": np.array([15]),
        "iou": np.array([0.5], np.float32),
        "least": np.array([0.1], np.float32),
    }
    (expected,) = run_onnxruntime(model_of("N", 20, center), inputs)
    model = import_onnx(model_of(len(expected), 20, center))
    assert operators(model)["NonMaxSuppression"] == 1 and len(expected) > 20
    (got,) = run_onnxruntime(model.onnx_model, inputs)
    np.testing.assert_array_equal(got, expected)
    built = hetero_tvm.build_model(hetero_tvm.optimize_model(model), use_shipped=False)
    np.testing.assert_array_equal(built.run(inputs)[0], expected)
