"""Nodes with very many operands: trees of nodes with few, with the same results."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend.onnx.graph.operands import settle_operands
from hetero_tvm.frontend.onnx.importer import import_onnx


def wide(kind, count):
    """A node that joins ``count`` operands by turns; a tensor and twice the tensor."""
    attributes = {"axis": 1} if kind == "Concat" else {}
    nodes = [
        helper.make_node("Add", ["x", "x"], ["twice"]),
        helper.make_node(kind, [("x", "twice")[n % 2] for n in range(count)], ["y"], "wide", **attributes),
    ]
    value = helper.make_tensor_value_info
    inputs, outputs = [value("x", TensorProto.FLOAT, [2, 3])], [value("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("kind", ["Concat", "Max", "Min", "Sum"])
@pytest.mark.parametrize("count", [128, 129, 10_000])
def test_trees_give_what_the_node_gives(kind, count):
    model = wide(kind, count)
    x = {"x": np.arange(-3, 3, dtype=np.float32).reshape(2, 3)}
    expected = ReferenceEvaluator(model).run(None, x)[0]
    assert settle_operands(model.graph) == (count > 128)
    assert max(len(node.input) for node in model.graph.node) <= 128
    np.testing.assert_array_equal(ReferenceEvaluator(model).run(None, x)[0], expected)
    assert not settle_operands(model.graph)


def test_nodes_of_a_branch_are_trees_too():
    value = helper.make_tensor_value_info
    bodies = [
        helper.make_graph(
            [helper.make_node("Sum", ["x"] * count, ["y"], "wide")],
            "body",
            [],
            [value("y", TensorProto.FLOAT, [2])],
        )
        for count in (200, 2)
    ]
    choice = helper.make_node("If", ["c"], ["z"], then_branch=bodies[0], else_branch=bodies[1])
    inputs = [value("c", TensorProto.BOOL, []), value("x", TensorProto.FLOAT, [2])]
    graph = helper.make_graph([choice], "g", inputs, [value("z", TensorProto.FLOAT, [2])])
    assert settle_operands(graph)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    given = {"c": np.array(True), "x": np.ones(2, np.float32)}
    np.testing.assert_array_equal(ReferenceEvaluator(model).run(None, given)[0], [200, 200])


def test_a_model_that_joins_a_thousand_tensors_imports():
    nodes = import_onnx(wide("Concat", 1000)).onnx_model.graph.node
    assert max(len(node.input) for node in nodes if node.op_type == "Concat") <= 128


@pytest.mark.parametrize("kind", ["Concat", "Max", "Mean"])
def test_more_than_there_is_time_to_compile_are_refused_at_once(kind):
    with pytest.raises(ModelError, match=r"'wide' \(\w+\) has 50,000 operands; at most 16,384"):
        import_onnx(wide(kind, 50_000))


def test_constants_among_many_operands_cost_nothing():
    model = wide("Concat", 2)
    names = [f"c{n}" for n in range(20_000)]
    model.graph.node[-1].input.extend(names)
    for name in names:
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.FLOAT, [2, 1], [1.0, 2.0]))
    assert settle_operands(model.graph)
