"""Products with sparse matrices: what is not finite reaches what weighs it, and nothing else."""

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from hetero_tvm.frontend.onnx.graph.body import Body
from hetero_tvm.frontend.onnx.graph.products import sparse_product


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_special_values_follow_their_weights(dtype):
    weights = np.array([[1, 0, -2, 0], [0, 3, 1, 0], [0, 0.5, 0, 1]], dtype)
    specials = (np.nan, np.inf, -np.inf, 2.0)
    x = np.array(np.meshgrid(specials, specials, specials), dtype).reshape(3, -1).T
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    b = Body(node, 18)
    b.op("Identity", sparse_product(b, "x", "w", dtype), output="y")
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    values = [
        helper.make_tensor_value_info(n, element, a.shape)
        for n, a in (("x", x), ("w", weights), ("y", x[:, :1]))
    ]
    graph = helper.make_graph(b.nodes, "g", values[:2], [onnx.ValueInfoProto(name="y")])
    with np.errstate(all="ignore"):
        (y,) = ReferenceEvaluator(graph, opsets={"": 18}).run(None, {"x": x, "w": weights})
        seen = np.where(weights == 0, 0, x[:, :, None] * weights).sum(1)
    np.testing.assert_array_equal(y, seen)
    assert y.dtype == dtype
