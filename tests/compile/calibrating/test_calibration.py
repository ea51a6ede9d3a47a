"""Static quantisation: weights that its ranges make safe to add up in 16 bits."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.compile.calibrating.calibration import Calibration, weight_ranges
from hetero_tvm.frontend import import_model
from hetero_tvm.ops.integers.quantized import QuantConv2d
from hetero_tvm.schedules.cpu.dots import safe_pairs


def network():
    """A convolution, and a product with its weights the other way round."""
    rng = np.random.default_rng(0)
    stored = {
        "f": rng.standard_normal((6, 8, 3, 3)).astype("float32"),
        "w": rng.standard_normal((4, 96)).astype("float32"),
        "m": rng.standard_normal((4, 5)).astype("float32"),
    }
    stored["w"][2] = 0
    nodes = [
        helper.make_node("Conv", ["x", "f"], ["c"], name="conv"),
        helper.make_node("Flatten", ["c"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w"], ["g"], transB=1, name="gemm"),
        helper.make_node("MatMul", ["g", "m"], ["y"], name="matmul"),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), stored


@pytest.mark.parametrize("pairs", [1, 2])
def test_weights_are_safe_and_within_half_a_step(pairs):
    model, stored = network()
    samples = [{"x": np.random.default_rng(1).standard_normal((1, 8, 6, 6)).astype("float32")}]
    written = Calibration(import_model(model), samples, pairs_safe=pairs).quantized()
    given = {tensor.name: numpy_helper.to_array(tensor) for tensor in written.graph.initializer}
    for name, w in stored.items():
        (rounded,) = [q for key, q in given.items() if q.dtype == np.int8 and q.shape == w.shape]
        (scale,) = [s for key, s in given.items() if key.startswith(f"{name}_") and key.endswith("scale")]
        steps = scale.reshape((1, -1) if name == "m" else (-1, *[1] * (w.ndim - 1)))
        assert (np.abs(rounded * steps - w) <= 0.5001 * steps).all()
        ordered = {"f": QuantConv2d.word_order, "w": np.transpose, "m": np.array}[name](rounded)
        assert safe_pairs(ordered) >= pairs


def test_no_ranges_for_weights_that_are_computed():
    model, _ = network()
    del model.graph.initializer[0]
    assert sorted(weight_ranges(model, 2)) == ["m", "w"]
