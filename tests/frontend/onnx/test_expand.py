"""Operators that wait for shapes."""

import numpy as np
import pytest

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from hetero_tvm.frontend.onnx.expand import SHAPED, expand_shaped, refuse_shapeless
from hetero_tvm.frontend.onnx.graph.constants import ConstantPool
from tests.frontend.onnx.helpers import add_weight, operators, text_model

BODY = "g (float[2,6,1] x) => (float[2,6,2] y) { a = Neg(x) b = DFT(a) y = Exp(b) }"


def test_nothing_happens_until_shapes_are_known():
    graph = text_model(BODY, "", "/dft").graph
    pool = ConstantPool()
    assert not expand_shaped(graph, {}, pool, 17)
    assert [node.op_type for node in graph.node] == ["Neg", "DFT", "Exp"]
    with pytest.raises(UnsupportedOperatorError, match="shapes that DFT must know[\\s\\S]*'/dft'"):
        refuse_shapeless(graph)
    assert expand_shaped(graph, {"a": (1, (2, 6, 1))}, pool, 17)
    left = [node.op_type for node in graph.node]
    assert left[0] == "Neg" and left[-1] == "Exp" and not set(SHAPED) & set(left)
    refuse_shapeless(graph)


def test_operators_of_other_domains_are_left_alone():
    source = text_model("g (float[2,6,1] x) => (float[2,6,2] y) { y = my.DFT(x) }", extra=', "my": 1')
    assert not expand_shaped(source.graph, {"x": (1, (2, 6, 1))}, ConstantPool(), 17)
    refuse_shapeless(source.graph)


def test_shapes_that_become_known_while_cleaning_are_enough():
    source = text_model(
        "g (float[n,6] x) => (float[?,?,?] y) "
        "{ s = Shape(x) t = Concat<axis = 0>(s, one) r = Reshape(x, t) y = DFT(r) }"
    )
    add_weight(source, "one", np.array([1]))
    model = import_onnx(source, shapes={"x": (2, 6)})
    assert model.signature.outputs[0].shape == (2, 6, 2) and "DFT" not in operators(model)
