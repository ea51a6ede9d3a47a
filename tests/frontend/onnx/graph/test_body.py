"""Nodes that replace one: names, options, and norms in every opset."""

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from hetero_tvm.frontend.onnx.graph.body import Body, as_text


def body_of(node, opset=17, **shapes):
    return Body(node, opset, shapes.get)


def run(body, *outputs, **feeds):
    inputs = [helper.make_tensor_value_info(name, 1, array.shape) for name, array in feeds.items()]
    ends = [helper.make_value_info(name, helper.make_tensor_type_proto(1, None)) for name in outputs]
    graph = helper.make_graph(body.nodes, "g", inputs, ends)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", body.opset)], ir_version=8)
    return ReferenceEvaluator(model).run(None, feeds)


def test_nodes_and_tensors_bear_the_name_of_what_they_replace():
    body = body_of(helper.make_node("Fused", ["x"], ["", "y"], "/layer/fused"))
    body.end(1, body.op("Exp", body.op("Neg", "x")))
    own = ("Neg_0", "Exp_1", "Identity_2")
    assert [node.name for node in body.nodes] == [f"/layer/fused/{name}" for name in own]
    assert [list(node.output) for node in body.nodes] == [["y/Neg_0"], ["y/Exp_1"], ["y"]]


def test_inputs_and_outputs_that_are_left_out():
    body = body_of(helper.make_node("Fused", ["x", "", "z"], ["y", ""]), x=(2, 0), z=(3, None))
    assert [body.input(i) for i in range(4)] == ["x", "", "z", ""]
    assert [body.wants(i) for i in range(3)] == ["y", "", ""]
    assert body.is_empty("") and body.is_empty("x") and not body.is_empty("z")
    assert (body.rank("z", 5), body.rank("unknown", 5)) == (2, 5)
    body.end(1, "x")
    assert not body.nodes


def test_cuts_extents_and_parts():
    body = body_of(helper.make_node("Fused", ["x"], ["y"], "n"))
    first, second = body.split("x", 1, [1, 3])
    values = {"cut": body.cut("x", 1, 1, 3), "extent": body.extent("x", 1), "a": first, "b": second}
    for name, value in values.items():
        body.op("Identity", value, output=name)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    cut, extent, a, b = run(body, "cut", "extent", "a", "b", x=x)
    assert np.array_equal(cut, x[:, 1:3]) and extent.tolist() == [4]
    assert np.array_equal(a, x[:, :1]) and np.array_equal(b, x[:, 1:])


@pytest.mark.parametrize("opset", [11, 13, 17, 18, 20])
@pytest.mark.parametrize("centered", [True, False])
def test_norms_in_every_opset(opset, centered):
    """Reductions take their axes as an attribute before opset 18, and as an input from then on."""
    body = body_of(helper.make_node("Fused", ["x", "g"], ["y"], "n", epsilon=0.01), opset)
    body.norm("x", "g", "", 1e-5, centered=centered)
    generator = np.random.default_rng(0)
    x, g = generator.standard_normal((3, 5), np.float32), generator.standard_normal(5, np.float32)
    base = x - x.mean(-1, keepdims=True) if centered else x
    wanted = base / np.sqrt(np.square(base).mean(-1, keepdims=True) + 0.01) * g
    np.testing.assert_allclose(run(body, "y", x=x, g=g)[0], wanted, atol=1e-6)


def test_text_attributes():
    assert as_text(b"forward") == as_text("forward") == "forward"
