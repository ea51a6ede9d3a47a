"""Nodes of a graph."""

import numpy as np
import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend import import_onnx
from hetero_tvm.frontend.onnx.graph.nodes import set_nodes
from tests.frontend.onnx.helpers import add_weight, text_model


def test_a_graph_may_get_its_own_nodes_in_another_order():
    model = text_model("g (float[1] x) => (float[1] y) { y = Relu (x) z = Exp (x) }", "a", "b")
    set_nodes(model.graph, [model.graph.node[1], model.graph.node[0], model.graph.node[1]])
    assert [node.name for node in model.graph.node] == ["b", "a", "b"]


def test_operands_that_do_not_fit_are_told_with_their_node():
    product = "com.microsoft.MatMulBnb4<K=64, N=8, block_size=32, quant_type=1>(x, w, s)"
    text = f"g (float[2,64] x) => (float[2,8] y) {{ y = {product} }}"
    model = text_model(text, "/head", extra=', "com.microsoft": 1')
    add_weight(model, "w", np.zeros(3, np.uint8))
    add_weight(model, "s", np.ones(16, np.float32))
    with pytest.raises(ModelError, match=r"'/head' \(MatMulBnb4\) cannot be written out.*shapes .6,. "):
        import_onnx(model)
