"""Files in which ONNX Runtime has put images into channel blocks: its own numbers, in plain ONNX."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from hetero_tvm.host.cpu import cpu_features
from tests.frontend.onnx.helpers import against_reference, operators


def network(channels, width):
    """Convolutions of every kind with what ONNX Runtime puts into them, pooling and a resize between."""
    rng, weights, nodes = np.random.default_rng(0), [], []

    def weight(name, array):
        weights.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def conv(x, name, *shape, **attributes):
        fan = np.prod(shape[1:]) ** 0.5
        inputs = [x, weight(f"w{name}", rng.standard_normal(shape) / fan)]
        if name != "point":
            inputs.append(weight(f"b{name}", rng.standard_normal(shape[:1])))
        return node("Conv", inputs, name, **attributes)

    def node(kind, inputs, name, **attributes):
        nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    x = node("Relu", [conv("x", "stem", width, channels, 3, 3, pads=[1] * 4, strides=[2, 2])], "r0")
    kept = node("MaxPool", [x], "p0", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    bounds = weight("low", 0), weight("high", 6)
    x = node("Clip", [conv(kept, "point", width, width, 1, 1), *bounds], "r1")
    x = conv(x, "deep", width, 1, 3, 3, group=width, pads=[1] * 4)
    x = node("Relu", [node("Add", [x, kept], "sum")], "r2")
    x = node("Sigmoid", [conv(x, "wide", 32, width, 3, 3, pads=[1] * 4)], "s")
    pooled = node("AveragePool", [x], "p1", kernel_shape=[2, 2], pads=[0, 0, 1, 1], count_include_pad=1)
    x = node("Concat", [x, pooled], "joined", axis=1)
    x = conv(x, "groups", 16, 32, 3, 3, group=2, dilations=[2, 2], pads=[2] * 4)
    x = node("LeakyRelu", [x], "r3", alpha=0.2)
    x = node("Resize", [x, "", weight("scales", [1, 1, 2, 2])], "large", mode="nearest", **_CORNER)
    node("GlobalAveragePool", [conv(x, "last", 20, 16, 1, 1)], "y")
    given = helper.make_tensor_value_info("x", 1, [1, channels, 16, 16])
    results = [helper.make_tensor_value_info(name, 1, None) for name in ("y", "large")]
    graph = helper.make_graph(nodes, "blocked", [given], results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


_CORNER = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def optimized(model, path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # it warns that the file is for machines like this one
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


@pytest.mark.parametrize("channels, width", [(3, 12), (8, 16), (1, 8), (16, 24)])
def test_blocks_become_plain_images(channels, width, tmp_path):
    source = optimized(network(channels, width), tmp_path / "optimized.onnx")
    if {"avx2", "fma"} <= cpu_features():
        assert {n.op_type for n in source.graph.node if n.domain == "com.microsoft.nchwc"} >= {
            "Conv",
            "ReorderOutput",
        }
    x = np.random.default_rng(1).standard_normal((1, channels, 16, 16), np.float32)
    model = against_reference(source, {"x": x}, judge="onnxruntime")
    found = operators(model)
    assert found["Conv"] == 6 and not {"ReorderInput", "Transpose"} & set(found)
    block = 16 if "avx512f" in cpu_features() else 8
    if width % 16 == 0 and channels % block in (0, 3):  # three channels are read as they are
        assert "Pad" not in found and found["Slice"] <= 1  # whole blocks need neither


def test_rows_of_channels_are_turned(tmp_path):
    nodes = [
        helper.make_node("ReorderInput", ["x"], ["a"], "in", domain="com.microsoft.nchwc", channels_last=1),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node(
            "ReorderOutput", ["b"], ["y"], "out", domain="com.microsoft.nchwc", channels=4, channels_last=1
        ),
    ]
    ends = [helper.make_tensor_value_info(name, 1, [2, 3, 5, 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "turned", ends[:1], ends[1:])
    imports = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft.nchwc", 1)]
    source = helper.make_model(graph, opset_imports=imports, ir_version=8)
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 4), np.float32)
    against_reference(source, {"x": x}, judge="onnxruntime")


def test_weights_that_come_at_run_time_are_refused():
    node = helper.make_node("Conv", ["x", "w"], ["y"], "blocked", domain="com.microsoft.nchwc")
    given = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [1, 8, 4, 4]), ("w", [8, 8, 1, 1]))]
    result = helper.make_tensor_value_info("y", 1, [1, 8, 4, 4])
    imports = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft.nchwc", 1)]
    model = helper.make_model(
        helper.make_graph([node], "g", given, [result]), opset_imports=imports, ir_version=8
    )
    with pytest.raises(UnsupportedOperatorError, match="blocked.*not stored in the file"):
        import_onnx(model)
