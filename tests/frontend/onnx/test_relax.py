"""Translation to Relax: names of bindings, branches, TVM's failures."""

import numpy as np
import pytest

from hetero_tvm import zoo
from hetero_tvm.errors import ModelError
from hetero_tvm.frontend import import_model, import_onnx, source_names
from hetero_tvm.frontend.onnx.converters import CONVERTERS
from hetero_tvm.reference import compare, run_reference
from tests.frontend.onnx.helpers import add_weight, bindings, run_tvm, text_model
from tests.selection import named


def test_tvm_failures_name_the_node(monkeypatch):
    def fail(inputs, attributes):
        raise ValueError("InternalError: Check failed")

    source = text_model("g (float[2,3] x) => (float[2,3] y) { y = Exp(x) }", "/find")
    with monkeypatch.context() as patch, pytest.raises(ModelError, match="'/find'"):
        patch.setitem(CONVERTERS, "Exp", fail)
        import_onnx(source)
    model = import_model("zoo:minilm-l6-tiny")  # the importer works after a failure
    assert model.signature.outputs


TINY = [name for name in zoo.names() if name.endswith("-tiny")]


@pytest.mark.parametrize("name", named(TINY, {"minilm-l6-tiny", "llama-160m-tiny", "resnet50-tiny"}))
def test_every_binding_names_its_node(name):
    model = import_model(f"zoo:{name}")
    nodes = {node.name for node in model.onnx_model.graph.node}
    stored = {node.name for node in zoo.build(name).graph.node}
    names = [binding.var.name for binding in bindings(model)]
    assert len(set(names)) == len(names)
    sources = {source_names(binding.var) for binding in bindings(model)} - {"outputs"}
    assert sources <= nodes <= stored
    # all that is left to compute is there
    assert nodes - sources == set()


def test_nodes_without_names_and_with_equal_names():
    model = import_onnx(
        text_model(
            "g (float[2,3] x) => (float[2,3] y) { a = Exp(x) b = Tanh(a) c = Exp(b) y = Tanh(c) }",
            "",
            "n",
            "n",
            "n#1",
        )
    )
    assert [binding.var.name for binding in bindings(model)] == ["Exp_a", "n", "n#1", "n#1#1"]
    assert [source_names(binding.var) for binding in bindings(model)] == ["Exp_a", "n", "n", "n#1"]


def test_several_bindings_of_a_node_share_its_name():
    model = import_onnx(
        add_weight(
            text_model("g (float[2,3] x) => (float[2,4] y) { y = Gemm<transB = 1>(x, w) }", "/fc/Gemm"),
            "w",
            np.ones((4, 3), np.float32),
        )
    )
    assert [binding.var.name for binding in bindings(model)] == ["/fc/Gemm#1", "/fc/Gemm"]


def test_branches_taken_at_run_time():
    source = text_model(
        "g (bool c, float[2,3] x) => (float[2,3] y) { z = Exp(x) y = If(c)"
        " <then_branch = a () => (float[2,3] p) { q = Sin(z) p = Tanh(q) },"
        " else_branch = b () => (float[2,3] p) { p = Sin(x) }> }",
        "/exp",
        "/if",
    )
    model = import_onnx(source)
    branches = bindings(model)[-1].value
    inner = [
        b.var
        for side in (branches.true_branch, branches.false_branch)
        for k in side.blocks
        for b in k.bindings
    ]
    assert inner and {source_names(var) for var in inner} == {"/if"}
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    for condition in (True, False):
        inputs = {"c": np.array(condition), "x": x}
        assert compare(run_tvm(model, inputs), run_reference(model, inputs)).ok


def test_positions_beyond_their_table_ask_for_a_smaller_size():
    model = text_model("""g (float[b, n] x) => (float[b, n] y) {
            zero = Constant <value = int64 {0}> ()
            one = Constant <value = int64 {1}> ()
            axis = Constant <value = int64[1] {1}> ()
            shape = Shape <start: int = 1> (x)
            n_ = Squeeze (shape)
            at = Range (zero, n_, one)
            rows = Gather (table, at)
            y = Add (x, rows) }""")
    add_weight(model, "table", np.zeros(16, np.float32))
    import_onnx(model, shapes={"x": (1, 16)})
    with pytest.raises(ModelError, match=r"\(Gather\): an index lies outside \[-16, 16\)") as caught:
        import_onnx(model, shapes={"x": (1, 17)})
    assert "a smaller size" in caught.value.hint
    with pytest.raises(ModelError) as caught:
        import_onnx(model)
    assert "--shape x=1x1 " in caught.value.hint and "--shape x=?x?." in caught.value.hint


@pytest.mark.parametrize("op", ["MatMul", "Add"])
def test_operands_of_two_types_are_told(op):
    """ONNX's checker lets them pass unless it infers types; NumPy makes float64 of weights unasked."""
    source = text_model(f"g (float[2,2] x, double[2,2] z) => (float[2,2] y) {{ y = {op} (x, z) }}")
    with pytest.raises(ModelError, match="float"):
        import_onnx(source)
    del source.graph.input[1]
    add_weight(source, "z", np.ones((2, 2)))
    with pytest.raises(ModelError, match="two types, float32 and float64"):
        import_onnx(source)
