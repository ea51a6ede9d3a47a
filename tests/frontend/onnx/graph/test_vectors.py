"""Axes, extents and places as scalars where vectors are asked for, and the other way round."""

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import run_onnxruntime, run_tvm, text_model

ONE = "<value_int = 1>"


@pytest.mark.parametrize(
    "body",
    [
        f"{{ a = Constant{ONE}() y = Unsqueeze(x, a) }}",
        "<int64 a = {1}> { y = Unsqueeze(x, a) }",
        "<int64 b = {0}, int64 e = {1}> { y = Slice(x, b, e) }",
        "<int64[2] a = {1, 1}> { y = ReduceSum(x, a) }",
        "<int64[2] a = {1, -1}> { y = ReduceSum(x, a) }",
        "<int64[2] a = {0, 0}> { y = ReduceMax<axes = [-2, 0]>(x) }",
        "<int64[2] a = {0, 0}> { t = Slice(x, b, e) y = Squeeze(t, a) } <int64[1] b = {0}, int64[1] e = {1}>",
        "<int64[1] b = {0}, int64[1] e = {3}, int64[1] s = {1}> { r = Range(b, e, s) "
        "c = Cast<to = 1>(r) y = Add(x, c) }",
    ],
)
def test_ranks_that_others_take(body):
    if body.endswith(">"):
        nodes, _, constants = body.rpartition("<")
        body = nodes.replace("<", f"<{constants[:-1]}, ", 1)
    model = text_model(f"g (float[2, 3] x) => (float[?] y) {body}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    given = {"x": np.float32([[1, -2, 3], [0.5, 4, -1]])}
    if "int64[2] a" in body:  # the evaluator takes no axis that is named twice
        (expected,) = run_onnxruntime(model, given)
    else:
        (expected,) = ReferenceEvaluator(model).run(None, given)
    np.testing.assert_allclose(run_tvm(import_onnx(model), given)[0], expected, rtol=1e-6)


def test_one_value_is_asked_for():
    model = text_model(
        "g (float[2, 3] x) => (float[2, 3] y) <int64[2] a = {0, 1}> { y = CumSum(x, a) }", "sum"
    )
    with pytest.raises(ModelError, match="'sum'.*asks for one value.*has 2"):
        import_onnx(model)
