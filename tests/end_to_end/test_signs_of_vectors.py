"""Choices by the sign of integers in vectors, on the way that a check takes."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from hetero_tvm.api import build_model, import_model, optimize_model


@pytest.mark.parametrize("shape, count", [((2, 6, 12), 7), ((3, 6, 12), 7), ((2, 5, 4), 9)])
def test_indices_that_count_from_the_end(shape, count):
    """LLVM makes vectors of a few remainders and the tests of their signs, and lost the mask of these: memory
    of others was read, or the process died."""
    node = helper.make_node("Gather", ["d", "i"], ["y"], axis=1)
    ends = [
        helper.make_tensor_value_info("d", TensorProto.FLOAT, shape),
        helper.make_tensor_value_info("i", TensorProto.INT32, [count]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [shape[0], count, shape[2]]),
    ]
    graph = helper.make_graph([node], "g", ends[:2], ends[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    built = build_model(optimize_model(import_model(model)), use_shipped=False)
    rng = np.random.default_rng(0)
    d = rng.standard_normal(shape).astype(np.float32)
    for _ in range(4):
        i = rng.integers(-shape[1], shape[1], count).astype(np.int32)
        np.testing.assert_array_equal(built.run({"d": d, "i": i})[0], np.take(d, i, axis=1))
