"""Constants that follow no rule of their places at other sizes are computed when the model runs."""

import numpy as np
import pytest
from onnxruntime import InferenceSession

import hetero_tvm
from hetero_tvm.api import build_model, import_model, optimize_model
from tests.frontend.onnx.helpers import text_model

# Positions of a grid's points as shares of its sides (boxes of detectors), and as phases of sines.
POSITIONS = """
g (float[1,2,h,w] x) => (float[1,n,2] y, float[1,2,h,w] z) {
    shape = Shape(x)
    first = Constant<value_ints = [2]>()
    second = Constant<value_ints = [3]>()
    none = Constant<value_int = 0>()
    one = Constant<value_int = 1>()
    rows1 = Gather(shape, first)
    columns1 = Gather(shape, second)
    rows = Squeeze(rows1)
    columns = Squeeze(columns1)
    down = Range(none, rows, one)
    across = Range(none, columns, one)
    half = Constant<value_float = 0.5>()
    down_f = Cast<to = 1>(down)
    across_f = Cast<to = 1>(across)
    middle_down = Add(down_f, half)
    middle_across = Add(across_f, half)
    rows_f = Cast<to = 1>(rows)
    columns_f = Cast<to = 1>(columns)
    y_share = Div(middle_down, rows_f)
    x_share = Div(middle_across, columns_f)
    column = Constant<value_ints = [1]>()
    y_column = Unsqueeze(y_share, column)
    sides = Concat<axis = 0>(rows1, columns1)
    y_grid = Expand(y_column, sides)
    x_grid = Expand(x_share, sides)
    last = Constant<value_ints = [-1]>()
    y_points = Unsqueeze(y_grid, last)
    x_points = Unsqueeze(x_grid, last)
    points = Concat<axis = -1>(x_points, y_points)
    listed = Constant<value_ints = [1, -1, 2]>()
    anchors = Reshape(points, listed)
    turned = Transpose<perm = [0, 2, 3, 1]>(x)
    boxes = Reshape(turned, listed)
    y = Add(boxes, anchors)
    phase = Sin(x_share)
    z = Mul(x, phase)
}"""


@pytest.mark.thorough
@pytest.mark.parametrize("height", [6, hetero_tvm.Span(2, 9)])
def test_shares_of_what_is_there(height, tmp_path):
    model = text_model(POSITIONS)
    shape = (1, 2, height, hetero_tvm.Span(3, 12))
    optimized = optimize_model(import_model(model, shapes={"x": shape}))
    net = hetero_tvm.load(build_model(optimized).export(tmp_path))
    reference = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for h, w in ((2, 3), (9, 12), (9, 3), (2, 12), (5, 7), (6, 6)):
        if isinstance(height, int):
            h = height
        x = np.random.default_rng(h * w).normal(size=(1, 2, h, w)).astype("float32")
        for found, wanted in zip(net(x), reference.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
