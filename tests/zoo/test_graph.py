"""Graphs as exporters write them: names, scopes, weights."""

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from hetero_tvm import zoo
from hetero_tvm.zoo.graph import FLOAT32_MIN, GraphBuilder

TINY = [name for name in zoo.names() if name.endswith("-tiny")]


@pytest.mark.parametrize("name", TINY)
def test_nodes_are_named_as_exporters_name_them(name):
    nodes = zoo.build(name).graph.node
    names = [node.name for node in nodes]
    assert len(set(names)) == len(names)
    assert all(n.name.startswith("/") and n.name.split("/")[-1].startswith(n.op_type) for n in nodes)


def weights(model):
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def test_scopes_name_nodes_and_parameters():
    g = GraphBuilder("net", opset=17, seed=0)
    x = g.input("x", TensorProto.FLOAT, (2, 3, 4))
    with g.scope("encoder/layer.0"):
        first = g.linear("dense", x, 4, 5)
        second = g.op("Relu", g.op("Relu", first))
    g.output("y", second, (2, 3, 5))
    model = g.finish()
    assert [node.name for node in model.graph.node] == [
        "/encoder/layer.0/dense/MatMul",
        "/encoder/layer.0/dense/Add",
        "/encoder/layer.0/Relu",
        "/encoder/layer.0/Relu_1",
    ]
    assert model.graph.node[-1].output == ["y"]
    shapes = {name: array.shape for name, array in weights(model).items()}
    assert shapes == {"onnx::MatMul_1": (4, 5), "encoder.layer.0.dense.bias": (5,)}


def test_a_weight_depends_on_its_path_and_the_seed_only():
    def build(seed, more):
        g = GraphBuilder("net", opset=17, seed=seed)
        if more:
            g.normal("first", (3,), 1.0)
        with g.scope("layer"):
            g.normal("weight", (1000,), 0.5, mean=2.0)
        return weights(g.finish())["layer.weight"]

    assert np.array_equal(build(0, False), build(0, True))
    assert not np.array_equal(build(0, False), build(1, False))
    assert abs(build(0, False).mean() - 2) < 0.1 and 0.4 < build(0, False).std() < 0.6


def test_pieces_compute_what_they_say():
    """Shapes from parts, a broadcast with an open axis, the bias of a mask, norms in both spellings."""
    from onnx.reference import ReferenceEvaluator

    g = GraphBuilder("net", opset=17, seed=0)
    x, mask = g.input("x", TensorProto.FLOAT, (2, 4)), g.input("mask", TensorProto.INT64, (1, 2))
    g.output("shape", g.shape_list([g.dim(x, 0), 7]), (2,), TensorProto.INT64)
    g.output("spread", g.expand(g.op("Unsqueeze", x, g.const([0])), [3, -1, -1]), (3, 2, 4))
    g.output("bias", g.padding_bias(mask), (1, 1, 1, 2))
    g.output("gelu", g.gelu_erf(x), (2, 4))
    whole = g.layer_norm("norm", x, 4, epsilon=1e-5)
    parts = g.layer_norm("norm", x, 4, epsilon=1e-5, decomposed=True)
    g.output("difference", g.op("Sub", whole, parts), (2, 4))
    value = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)
    shape, spread, bias, gelu, difference = ReferenceEvaluator(g.finish()).run(
        None, {"x": value, "mask": np.array([[1, 0]])}
    )
    assert shape.tolist() == [2, 7]
    assert np.array_equal(spread, np.broadcast_to(value, (3, 2, 4)))
    assert bias.ravel().tolist() == [0, FLOAT32_MIN]
    assert abs(gelu[0, 0] + 2 * 0.02275) < 1e-4 and abs(difference).max() < 1e-5
