"""Functions with defaults, ONNX's domain under its full name, and functions called as operators are."""

import onnx
import pytest
from onnx import AttributeProto, helper

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from hetero_tvm.frontend.onnx.graph.spelling import spelled_out
from tests.frontend.onnx.helpers import FLOAT, against_original, text_model


def calling(*slopes: float | None) -> onnx.ModelProto:
    """``Twice`` is ``Leaky`` two times, with an attribute of its own and with the default."""
    leaky = helper.make_node("LeakyRelu", ["a"], ["b"])
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=AttributeProto.FLOAT)
    first = helper.make_node("Leaky", ["a"], ["c"], domain="own")
    first.attribute.add(name="slope", ref_attr_name="first", type=AttributeProto.FLOAT)
    second = helper.make_node("Leaky", ["c"], ["b"], domain="own")
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = [
        helper.make_function(
            "own",
            name,
            ["a"],
            ["b"],
            nodes,
            imports,
            attribute_protos=[helper.make_attribute(given, default)],
        )
        for name, nodes, given, default in (
            ("Leaky", [leaky], "slope", 0.3),
            ("Twice", [first, second], "first", 0.9),
        )
    ]
    nodes = [
        helper.make_node(
            "Twice", ["x"], [f"y{n}"], domain="own", **({} if slope is None else {"first": slope})
        )
        for n, slope in enumerate(slopes)
    ]
    outputs = [helper.make_tensor_value_info(node.output[0], FLOAT, [6]) for node in nodes]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", FLOAT, [6])], outputs)
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=9)


def test_calls_have_the_defaults_of_their_functions():
    against_original(calling(None, 0.1))


def test_functions_hand_attributes_on():
    model = calling(None, 0.1)
    twice = model.functions[1]
    del twice.attribute_proto[:]
    twice.attribute.append("first")
    against_original(model)
    other = twice.node[1].attribute.add(name="slope", ref_attr_name="first", type=AttributeProto.FLOAT)
    against_original(model)
    twice.node[1].domain, twice.node[1].op_type, other.name = "", "LeakyRelu", "alpha"
    with pytest.raises(UnsupportedOperatorError, match="an attribute 'first' that has several defaults"):
        import_onnx(model)


def test_the_model_is_left_as_it_is():
    model = calling(None)
    before = model.SerializeToString()
    assert spelled_out(model) is not model
    assert model.SerializeToString() == before
    plain = text_model("g (float[6] x) => (float[6] y) { y = Exp(x) }")
    assert spelled_out(plain) is plain


def test_the_full_name_of_onnx_s_domain():
    model = text_model("g (float[6] x) => (float[6] y) { a = Exp(x)\n y = Neg(a) }")
    model.graph.node[1].domain = "ai.onnx"
    against_original(model)
    model.opset_import.add(domain="ai.onnx", version=17)
    model.graph.node[0].domain = "ai.onnx"
    assert [(entry.domain, entry.version) for entry in spelled_out(model).opset_import] == [("", 17)]
    against_original(model)
    del model.opset_import[0]
    assert [(entry.domain, entry.version) for entry in spelled_out(model).opset_import] == [("", 17)]
    against_original(model)


def test_an_operator_goes_before_a_function_of_its_name():
    model = text_model("g (float[6] x) => (float[6] y) { y = Relu(x) }")
    nodes = [helper.make_node("Neg", ["a"], ["b"])]
    model.functions.append(
        helper.make_function("", "Relu", ["a"], ["b"], nodes, [helper.make_opsetid("", 17)])
    )
    against_original(model)
