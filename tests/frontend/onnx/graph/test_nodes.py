"""Nodes of a graph."""

from hetero_tvm.frontend.onnx.graph.nodes import set_nodes
from tests.frontend.onnx.helpers import text_model


def test_a_graph_may_get_its_own_nodes_in_another_order():
    model = text_model("g (float[1] x) => (float[1] y) { y = Relu (x) z = Exp (x) }", "a", "b")
    set_nodes(model.graph, [model.graph.node[1], model.graph.node[0], model.graph.node[1]])
    assert [node.name for node in model.graph.node] == ["b", "a", "b"]
