"""Shapes that a file declares: read from its outputs, and from symbols that inputs fix."""

import onnx

from hetero_tvm.frontend.onnx.check import remove_dead_nodes
from hetero_tvm.frontend.onnx.graph.constants import ConstantPool
from hetero_tvm.frontend.onnx.promise import PROMISED, declared_shapes, write_promised
from tests.frontend.onnx.helpers import text_model

MODEL = """g (float[N,3] x, int64[2] s, int64[1] k) => (float[N,6] a, float[M,3] b, int64[?] c, float d) {
  a = Expand (x, s)
  b = Expand (x, s)
  c = Identity (k)
  d = ReduceSum <keepdims = 0> (x)
}"""


def test_declared_shapes():
    model = text_model(MODEL)
    assert declared_shapes(model, {"x": (4, 3), "s": (2,), "k": (1,)}) == {"a": (4, 6), "d": ()}


def test_only_nodes_with_a_promise_are_written():
    model = text_model(MODEL)
    types = {"x": (1, (4, 3)), "s": (7, (2,)), "k": (7, (1,)), "a": (1, (None, None)), "b": (1, (None, None))}
    assert write_promised(model.graph, types, ConstantPool(), 17, {"a": (4, 3)})
    remove_dead_nodes(model.graph)
    makers = {node.output[0]: node.op_type for node in model.graph.node}
    assert (makers["a"], makers["b"]) == ("Identity", "Expand")
    assert any("must give the shapes that the model declares" in node.name for node in model.graph.node)


def test_operators_are_onnx_operators():
    assert {name for name in PROMISED if not onnx.defs.has(name)} == set()
