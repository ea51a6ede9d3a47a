"""Pooling on the CPU: kernels of a space for rows, images and volumes, onnxruntime's numbers."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from hetero_tvm.api import build_model, import_model, optimize_model

CASES = {
    "image": ((1, 3, 20, 37), [5, 5], {"pads": [2] * 4}),
    "strided": ((2, 3, 21, 40), [3, 3], {"pads": [1] * 4, "strides": [2, 2]}),
    "rounded up": ((1, 3, 10, 11), [3, 3], {"strides": [2, 2], "ceil_mode": 1}),
    "row": ((1, 6, 100), [4], {"pads": [1, 2], "strides": [3]}),
    "long row": ((2, 3, 333), [5], {"pads": [2, 2]}),
    "volume": ((1, 3, 8, 9, 20), [3, 3, 3], {"pads": [1] * 6, "strides": [2, 2, 2]}),
    "uneven volume": ((1, 2, 9, 6, 7), [2, 1, 3], {"pads": [1, 0, 0, 0, 0, 1], "strides": [1, 1, 2]}),
}
OPERATORS = {
    "max": ("MaxPool", {}),
    "mean": ("AveragePool", {}),
    "all": ("AveragePool", {"count_include_pad": 1}),
}


@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize("case", CASES)
def test_numbers_and_kernels(case, kind):
    shape, kernel, attributes = CASES[case]
    operator, more = OPERATORS[kind]
    node = helper.make_node(operator, ["x"], ["y"], "pool", kernel_shape=kernel, **attributes, **more)
    graph = helper.make_graph(
        [node],
        "one_pooling",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = onnx.shape_inference.infer_shapes(model)
    optimized = optimize_model(import_model(model), "cpu")
    assert {task.op.kind if task.op is not None else "generic" for task in optimized.tasks} == {"pool2d"}
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    np.testing.assert_allclose(build_model(optimized).run({"x": x})[0], expected, rtol=1e-6, atol=1e-6)
