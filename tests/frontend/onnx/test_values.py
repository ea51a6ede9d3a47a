"""Inputs fixed to values: what depends on them folds, the rest of the file is judged as it came."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hetero_tvm
from hetero_tvm.cli.common import model_parser
from hetero_tvm.errors import UsageError
from hetero_tvm.frontend.onnx.values import fix_values


def _branch(name: str, op: str) -> onnx.GraphProto:
    result = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    return helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [result])


def _model() -> onnx.ModelProto:
    """Halves rates of 8000 by another branch; the branches give tensors of different ranks."""
    nodes = [
        helper.make_node("Equal", ["rate", "high"], ["is_high"]),
        helper.make_node(
            "If", ["is_high"], ["y"], then_branch=_branch("a", "Flatten"), else_branch=_branch("b", "Neg")
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "rates",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2, 3]),
            helper.make_tensor_value_info("rate", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor("high", TensorProto.INT64, [], [16000])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("rate, shape", [(16000, (4, 6)), (8000, (4, 2, 3))])
def test_a_value_decides_a_branch_and_its_shape(rate: int, shape: tuple[int, ...]) -> None:
    model = hetero_tvm.import_model(_model(), shapes={"x": (4, 2, 3)}, values={"rate": rate})
    assert [spec.name for spec in model.signature.inputs] == ["x"]
    assert model.signature.outputs[0].shape == shape
    check = hetero_tvm.build_model(hetero_tvm.optimize_model(model)).check()
    assert check.ok
    assert not any(node.op_type == "If" for node in model.clean.proto.graph.node)


def test_without_the_value_the_message_tells_of_it() -> None:
    with pytest.raises(hetero_tvm.HeteroTVMError) as caught:
        hetero_tvm.import_model(_model(), shapes={"x": (4, 2, 3)})
    assert "--value" in str(caught.value)


def test_a_range_of_lengths_with_a_value() -> None:
    model = hetero_tvm.import_model(
        _model(), shapes={"x": (hetero_tvm.Span(1, 8), 2, 3)}, values={"rate": 16000}
    )
    assert model.signature.outputs[0].shape[1] == 6


def test_a_number_fills_an_input_of_known_extents_and_stands_for_its_default() -> None:
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("x", "w")]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])]
    default = helper.make_tensor("w", TensorProto.FLOAT, [3], [1, 1, 1])
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "m", inputs, outputs, [default])
    fixed = fix_values(helper.make_model(graph), {"w": 2})
    (tensor,) = fixed.graph.initializer
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), np.full(3, 2, np.float32))
    assert [value.name for value in fixed.graph.input] == ["x"]
    assert len(graph.input) == 2  # the model itself stays as it was


def test_all_that_does_not_fit_is_listed() -> None:
    with pytest.raises(UsageError) as caught:
        hetero_tvm.import_model(_model(), values={"rat": 1, "rate": 0.5, "x": [[1.0]]})
    assert len(caught.value.problems) == 3
    for values in ({"rate": [1, 2]}, {"rate": "high"}, {"rate": [[1], [1, 2]]}):
        with pytest.raises(UsageError):
            hetero_tvm.import_model(_model(), values=values)


def test_values_are_for_onnx_models() -> None:
    with pytest.raises(UsageError, match="ONNX models only"):
        hetero_tvm.import_model("zoo:minilm-l6-tiny", values={"input_ids": 1})


def test_values_on_the_command_line() -> None:
    options = model_parser("build", "").parse_args(["m.onnx", "--value", "rate=16000", "--value", "s=[1,2]"])
    assert dict(options.value) == {"rate": 16000, "s": [1, 2]}
    for wrong in ("rate", "rate=", "=3", "rate=fast"):
        with pytest.raises(SystemExit):
            model_parser("build", "").parse_args(["m.onnx", "--value", wrong])
