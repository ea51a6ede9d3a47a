"""Quantisers stay where bytes are read, and nowhere else."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.compile.calibrating.calibration import Calibration
from hetero_tvm.compile.calibrating.reach import (
    leading_nowhere,
    of_computed_operands,
    without_idle_quantizers,
)
from hetero_tvm.frontend import import_model


def network(*, sigmoid="Sigmoid"):
    """Two convolutions with a gate between them, and a sum and a product behind them."""
    rng = np.random.default_rng(0)
    stored = {name: rng.standard_normal((4, 4, 1, 1)).astype("float32") for name in ("f", "g")}
    nodes = [
        helper.make_node("Conv", ["x", "f"], ["a"], name="first"),
        helper.make_node(sigmoid, ["a"], ["s"], name="sigmoid"),
        helper.make_node("Mul", ["a", "s"], ["m"], name="gate"),
        helper.make_node("Conv", ["m", "g"], ["b"], name="second"),
        helper.make_node("Add", ["b", "a"], ["c"], name="sum"),
        helper.make_node("Mul", ["c", "c"], ["y"], name="square"),
    ]
    graph = helper.make_graph(
        nodes,
        "gated",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 5, 5])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 5, 5]) for name in ("y", "b")],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_what_leads_to_no_layer():
    assert sorted(leading_nowhere(network(), ["Conv"], ["Add", "Mul"])) == ["square", "sum"]
    assert leading_nowhere(network(), ["Conv"], []) == []


def test_filters_that_are_computed_are_no_reader_of_bytes():
    model = network()
    model.graph.node[3].input[:] = ["x", "m"]
    assert sorted(leading_nowhere(model, ["Conv"], ["Add", "Mul"])) == ["gate", "square", "sum"]


def test_products_of_computed_operands_are_no_layers():
    model = network()
    model.graph.node.append(helper.make_node("MatMul", ["y", "b"], ["z"], name="product"))
    assert of_computed_operands(model, ["Conv", "MatMul"]) == ["product"]


def quantizers(model):
    """What is quantised: names of the tensors without what ONNX Runtime adds to them."""
    stored = {tensor.name for tensor in model.graph.initializer}
    read = (node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear")
    return {name.removesuffix("_QuantizeLinear_Input") for name in read if name not in stored}


@pytest.mark.parametrize("kept, expected", [((), {"x", "a", "s", "m"}), (("second",), {"x"})])
def test_a_model_is_quantised_up_to_its_last_layer(kept, expected):
    rng = np.random.default_rng(1)
    samples = [{"x": rng.standard_normal((1, 4, 5, 5)).astype("float32")} for _ in range(2)]
    model = network()
    written = Calibration(import_model(model), samples).quantized(kept)
    onnx.checker.check_model(written, full_check=True)
    assert quantizers(written) == expected
    assert [value.name for value in written.graph.output] == ["y", "b"]
    results = [ort.InferenceSession(m.SerializeToString()).run(None, samples[0]) for m in (written, model)]
    for got, wanted in zip(*results, strict=True):
        assert np.abs(got - wanted).max() < 0.05 * np.abs(wanted).max()  # steps of 8 bits


def test_a_function_of_one_byte_keeps_its_quantisers():
    """A table of bytes stands for what is between two quantisers."""
    model = network()
    one = [
        helper.make_tensor(name, kind, [], [value])
        for name, kind, value in (("scale", 1, 0.1), ("zero", 2, 128))
    ]
    model.graph.initializer.extend(one)
    nodes = list(model.graph.node)
    del model.graph.node[:]

    def pair(name):
        ends = [name, "scale", "zero"]
        return (
            helper.make_node("QuantizeLinear", ends, [f"{name}_q"]),
            helper.make_node("DequantizeLinear", [f"{name}_q", *ends[1:]], [f"{name}_d"]),
        )

    nodes[1].input[0] = "a_d"  # the sigmoid alone reads the first pair
    nodes[3].input[0] = "s_d"
    del nodes[2]
    model.graph.node.extend([nodes[0], *pair("a"), nodes[1], *pair("s"), *nodes[2:]])
    assert quantizers(without_idle_quantizers(model, ["Conv"], ())) == {"a", "s"}
    assert quantizers(without_idle_quantizers(model, ["Conv"], ["second"])) == set()
