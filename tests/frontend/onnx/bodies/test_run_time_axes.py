"""Axes that come at run time: every choice of values, equal to ONNX's own evaluator."""

import numpy as np
import pytest

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import against_reference, text_model

REDUCTIONS = """g (float[3,2,2] x, int64[1] one, int64[2] two, int64 along) => (
  float[3,2] a, float[1,1,2] b, float[3,2,1] c, float[3,2,2] d, float[3,2,2] e) {
  a = ReduceSum <keepdims = 0> (x, one)
  b = ReduceMean (x, two)
  sums = ReduceLogSum (x, one)
  c = Neg (sums)
  d = CumSum (x, along)
  e = CumProd <exclusive = 1, reverse = 1> (x, along)
}"""


@pytest.mark.parametrize("one, along", [(-1, 0), (2, -2)])
def test_values_choose_among_the_axes_that_fit(one, along):
    x = np.random.default_rng(0).random((3, 2, 2), np.float32) + 0.1
    inputs = {"x": x, "one": np.array([one]), "two": np.array([1, 0]), "along": np.int64(along)}
    against_reference(text_model(REDUCTIONS, opset=26, ir=10), inputs)


def test_transform_along_an_axis_of_a_length():
    model = text_model(
        "g (float[2,6,6,1] x, int64 length, int64 axis) => (float[2,6,4,2] y) "
        "{ y = DFT <onesided = 1> (x, length, axis) }",
        opset=20,
    )
    x = np.random.default_rng(0).random((2, 6, 6, 1), np.float32)
    against_reference(model, {"x": x, "length": np.int64(6), "axis": np.int64(2)}, atol=1e-5)


def test_too_many_choices_are_refused():
    shape = ",".join(["2"] * 8)
    kept = ",".join(["2"] * 4)
    model = text_model(
        f"g (float[{shape}] x, int64[4] axes) => (float[{kept}] y) "
        "{ y = ReduceMax <keepdims = 0> (x, axes) }",
        opset=18,
    )
    with pytest.raises(UnsupportedOperatorError, match="70 choices of axes fit"):
        import_onnx(model)
