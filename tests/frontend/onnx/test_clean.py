"""Cleaning: opsets, folding, branches, no-ops; large weights are neither folded wrongly nor copied."""

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend import import_onnx
from hetero_tvm.reference import compare, run_reference, sample_inputs
from tests.frontend.onnx.helpers import add_weight, run_tvm, text_model

ort = pytest.importorskip("onnxruntime")


def operators(model):
    return Counter(node.op_type for node in model.onnx_model.graph.node)


def against_original(source, **options):
    """TVM on the imported model against onnxruntime on the file as it came."""
    model = import_onnx(source, **options)
    inputs = sample_inputs(model)
    session = ort.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    for ours, theirs in zip(run_tvm(model, inputs), session.run(None, inputs), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    return model


@pytest.mark.parametrize("opset", [7, 9, 11, 12, 13, 15, 17, 18, 19, 21])
def test_opsets(opset):
    """One graph in the spelling of each opset: attributes became inputs in 10, 11, 13 and 18."""
    nodes, weights = [], {}

    def const(name, value, dtype=np.int64):
        weights[name] = np.array(value, dtype)
        return name

    def node(op, inputs, output, **attributes):
        nodes.append(helper.make_node(op, inputs, [output], name=f"/{op}", **attributes))

    if opset >= 13:
        node("Squeeze", ["x", const("axes0", [1])], "a")
        node("Unsqueeze", ["a", const("axes1", [0])], "b")
    else:
        node("Squeeze", ["x"], "a", axes=[1])
        node("Unsqueeze", ["a"], "b", axes=[0])
    if opset >= 10:
        node("Slice", ["b", const("start", [1]), const("end", [6]), const("axis", [2])], "c")
    else:
        node("Slice", ["b"], "c", axes=[2], starts=[1], ends=[6])
    if opset >= 11:
        node("Clip", ["c", const("low", -0.5, np.float32), const("high", 1.0, np.float32)], "d")
        node("Pad", ["d", const("pads", [0, 0, 1, 0, 0, 0])], "e")
    else:
        node("Clip", ["c"], "d", min=-0.5, max=1.0)
        node("Pad", ["d"], "e", pads=[0, 0, 1, 0, 0, 0])
    node("Softmax", ["e"], "f", axis=2)
    node("Dropout", ["f"], "g")
    if opset >= 18:
        node("ReduceMean", ["g", const("axes2", [2])], "y", keepdims=0)
    else:
        node("ReduceMean", ["g"], "y", axes=[2], keepdims=0)
    graph = helper.make_graph(
        nodes,
        "opsets",
        [helper.make_tensor_value_info("x", 1, [2, 1, 8])],
        [helper.make_tensor_value_info("y", 1, [1, 2])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(source)
    model = against_original(source)
    assert "Dropout" not in operators(model)
    assert "/ReduceMean" in {node.name for node in model.onnx_model.graph.node}


def test_softmax_before_opset_13_flattens():
    source = text_model("g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis = 1>(x) }", opset=11)
    against_original(source)


def test_weights_listed_as_inputs_as_before_ir_4():
    source = text_model(
        "g (float[2,3] x, float[3,4] w) => (float[2,4] y) { y = MatMul(x, w) }", ir=3, opset=9
    )
    add_weight(source, "w", np.ones((3, 4), np.float32))
    model = against_original(source)
    assert [spec.name for spec in model.signature.inputs] == ["x"]


def test_newer_opset_than_known_is_refused():
    source = text_model("g (float[2] x) => (float[2] y) { y = Exp(x) }")
    source.opset_import[0].version = 999
    with pytest.raises(ModelError, match="uses ONNX opset 999"):
        import_onnx(source)


def test_shape_arithmetic_with_range_and_expand_is_folded():
    source = text_model("""
        g (float[2,6] x) => (float[2,3,2] y, int64[6] r, int64 n) {
            s = Shape(x)
            zero = Constant<value = int64 {0}>()
            one = Constant<value_int = 1>()
            axes = Constant<value_ints = [0]>()
            rows = Gather<axis = 0>(s, zero)
            columns = Gather<axis = 0>(s, one)
            minus = Constant<value_ints = [-1]>()
            two = Constant<value_ints = [2]>()
            rows1 = Unsqueeze(rows, axes)
            target = Concat<axis = 0>(rows1, minus, two)
            z = Reshape(x, target)
            filled = ConstantOfShape(s)
            sum = ReduceSum<keepdims = 0>(filled)
            y = Add(z, sum)
            r = Range(zero, columns, one)
            n = Size(x)
        }""")
    model = import_onnx(source)
    assert operators(model) == {"Reshape": 1, "Add": 1}
    inputs = sample_inputs(model)
    outputs = run_tvm(model, inputs)
    assert compare(outputs, run_reference(model, inputs)).ok
    assert outputs[1].tolist() == list(range(6)) and outputs[2] == 12


def test_shapes_behind_a_computed_reshape_are_known():
    """Each step needs the shape that the step before made known."""
    steps = "".join(
        f" s{i} = Shape(t{i}) h{i} = Div(s{i}, two) k{i} = Mul(h{i}, two) t{i + 1} = Reshape(t{i}, k{i})"
        for i in range(40)
    )
    source = text_model(
        "g (float[4,6] t0) => (float[4,6] y) "
        f"{{ two = Constant<value = int64[2] {{2, 2}}>() {steps} y = Exp(t40) }}"
    )
    model = import_onnx(source)
    assert "Div" not in operators(model)


def test_known_branches_are_taken():
    source = text_model("""
        g (float[2,3] x) => (float[2,3] y) {
            s = Shape(x)
            i = Constant<value_int = 0>()
            n = Gather<axis = 0>(s, i)
            two = Constant<value_int = 2>()
            c = Equal(n, two)
            y = If(c) <then_branch = a () => (float[2,3] p) { q = Exp(x) p = Tanh(q) },
                       else_branch = b () => (float[2,3] p) { p = Sin(x) }>
        }""")
    model = against_original(source)
    assert operators(model) == {"Exp": 1, "Tanh": 1}
    assert all(node.name.startswith("If_y") for node in model.onnx_model.graph.node)


def test_identities_and_outputs_keep_their_names():
    source = text_model("""
        g (float[2,3] x) => (float[2,3] y, float[2,3] same, float[2,3] again, float[2] c)
        <float[2] k = {1.0, 2.0}> {
            a = Identity(x) b = Exp(a) d = Identity(b) y = Identity(d)
            same = Identity(x) again = Identity(y) c = Identity(k)
        }""")
    model = against_original(source)
    assert [spec.name for spec in model.signature.outputs] == ["y", "same", "again", "c"]
    assert operators(model)["Exp"] == 1


def test_quantized_weights_stay_quantized():
    source = text_model(
        "g (float[2,3] x) => (float[2,4] y) { w = DequantizeLinear(q, s, z) y = MatMul(x, w) }"
    )
    add_weight(source, "q", np.arange(12, dtype=np.int8).reshape(3, 4))
    add_weight(source, "s", np.array(0.1, np.float32))
    add_weight(source, "z", np.array(1, np.int8))
    assert operators(import_onnx(source))["DequantizeLinear"] == 1


def test_transposed_weights_are_folded():
    source = text_model("g (float[2,3] x) => (float[2,4] y) { t = Transpose(w) y = MatMul(x, t) }")
    add_weight(source, "w", np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32))
    model = against_original(source)
    assert operators(model) == {"MatMul": 1}
    assert len(model.onnx_model.graph.initializer) == 1


@pytest.mark.parametrize(
    "body",
    [
        "a = ConstantOfShape(big) b = ReduceSum<keepdims = 0>(a) y = Add(x, b)",
        "a = Expand(one, big) b = ReduceSum<keepdims = 0>(a) y = Add(x, b)",
        "a = Tile(one, big) b = ReduceSum<keepdims = 0>(a) y = Add(x, b)",
    ],
)
def test_terabytes_are_not_computed_while_folding(body):
    source = text_model(f"g (float[2] x) => (float[2] y) {{ {body} }}")
    add_weight(source, "big", np.array([1 << 20, 1 << 20], np.int64))
    add_weight(source, "one", np.ones((1, 1), np.float32))
    model = import_onnx(source)
    assert operators(model)["ReduceSum"] == 1
    assert model.weight_bytes < 1000


def test_unused_nodes_and_weights_disappear():
    source = text_model("g (float[2] x) => (float[2] y) { a = Exp(x) b = Sin(x) c = Add(b, w) y = Tanh(a) }")
    add_weight(source, "w", np.ones(2, np.float32))
    model = import_onnx(source)
    assert operators(model) == {"Exp": 1, "Tanh": 1}
    assert model.weight_bytes == 0


def test_nodes_may_come_in_any_order():
    source = text_model("g (float[2] x) => (float[2] y) { a = Exp(x) b = Sin(a) y = Tanh(b) }")
    nodes = [source.graph.node[i] for i in (2, 0, 1)]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del source.graph.node[:]
    source.graph.node.extend(copies)
    assert [n.op_type for n in import_onnx(source).onnx_model.graph.node] == ["Exp", "Sin", "Tanh"]


def test_empty_parts_disappear():
    """What a rotary embedding of the whole head leaves over: a slice of nothing, joined again."""
    source = text_model(
        """g (float[2, 8] x) => (float[2, 8] y)
        <int64[1] zero = {0}, int64[1] eight = {8}, int64[1] far = {99}, int64[1] axis = {1}> {
            turned = Slice(x, zero, eight, axis)
            rest = Slice(x, eight, far, axis)
            scaled = Mul(rest, rest)
            minus = Neg(turned)
            y = Concat<axis = -1>(minus, scaled)
        }"""
    )
    model = against_original(source)
    assert operators(model) == {"Neg": 1}


def test_sums_of_shape_values_beyond_one_dimension():
    """Row numbers of a flattened batch, as traced masks compute them: shape inference that follows
    values takes the sum [2, 1] + [1, 3] for one of two vectors of unequal length."""
    source = text_model(
        """g (int64[b, s] ids) => (int64[b, s] y)
        <int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] second = {1}> {
            shape = Shape(ids)
            batch = Gather(shape, zero)
            length = Gather(shape, one)
            rows = Range(zero, batch, one)
            columns = Range(zero, length, one)
            rows_B1 = Unsqueeze(rows, second)
            offsets_B1 = Mul(rows_B1, length)
            columns_1S = Unsqueeze(columns, first)
            places = Add(offsets_B1, columns_1S)
            y = Add(places, ids)
        }"""
    )
    model = against_original(source, shapes={"ids": (2, 3)})
    assert operators(model) == {"Add": 1}


def test_a_slice_that_reverses_is_kept():
    source = text_model(
        """g (float[2, 8] x) => (float[2, 8] y)
        <int64[1] last = {-1}, int64[1] before = {-99}, int64[1] axis = {1}, int64[1] step = {-1}> {
            turned = Slice(x, last, before, axis, step)
            y = Neg(turned)
        }"""
    )
    assert operators(against_original(source)) == {"Slice": 1, "Neg": 1}


def test_softmax_over_the_last_axis_before_opset_13_stays_one():
    """The converter does not see the rank behind a computed reshape."""
    source = text_model(
        """g (float[b, 3, 4] x) => (float[b, 3, 4] y)
        <int64[1] two = {2}> {
            shape = Shape(x)
            zeros = ConstantOfShape(shape)
            ones = Shape(zeros)
            same = Reshape(x, ones)
            doubled = Add(same, same)
            soft = Softmax<axis = 2>(doubled)
            y = Exp(soft)
        }""",
        opset=11,
    )
    model = against_original(source, shapes={"x": (2, 3, 4)})
    assert operators(model)["Softmax"] == 1
    softmax = next(node for node in model.onnx_model.graph.node if node.op_type == "Softmax")
    known = {v.name: len(v.type.tensor_type.shape.dim) for v in model.onnx_model.graph.value_info}
    assert known[softmax.input[0]] == 3
