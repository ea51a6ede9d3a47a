"""Cleaning as a whole: opsets, functions, definitions, damaged models."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from hetero_tvm.errors import ModelError, UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx, source_names
from hetero_tvm.reference import compare, run_reference, sample_inputs
from tests.frontend.onnx.helpers import add_weight, against_original, bindings, operators, run_tvm, text_model
from tests.selection import thorough


@pytest.mark.parametrize("opset", [7, *thorough([9, 11, 12]), 13, *thorough([15, 17, 18, 19]), 21])
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


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Hardmax"])
def test_a_softmax_of_vectors_before_opset_13_names_its_axis(operator):
    with pytest.raises(UnsupportedOperatorError, match="axis 1, but its operand has 1"):
        import_onnx(text_model(f"g (float[3] x) => (float[3] y) {{ y = {operator}(x) }}", opset=11))


@pytest.mark.parametrize("operator, dtype", [("ArgMax", "int64"), ("Sqrt", "float32"), ("Sqrt", "bfloat16")])
@pytest.mark.parametrize("part", ["shape", "type"])
def test_outputs_may_come_without_a_shape_or_a_type(operator, dtype, part):
    given = "bfloat16" if dtype == "bfloat16" else "float"
    made = "int64" if dtype == "int64" else given
    source = text_model(f"g ({given}[2,3] x) => ({made}[2,3] y) {{ y = {operator}(x) }}", opset=13)
    if part == "type":
        source.graph.output[0].ClearField("type")
    else:
        source.graph.output[0].type.tensor_type.ClearField("shape")
    (y,) = import_onnx(source).signature.outputs
    assert y.dtype == dtype


def test_weights_listed_as_inputs_as_before_ir_4():
    source = text_model(
        "g (float[2,3] x, float[3,4] w) => (float[2,4] y) { y = MatMul(x, w) }", ir=3, opset=9
    )
    add_weight(source, "w", np.ones((3, 4), np.float32))
    model = against_original(source)
    assert [spec.name for spec in model.signature.inputs] == ["x"]


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


def test_contradicting_shapes_name_the_node():
    with pytest.raises(ModelError, match="contradict each other.*node name: /bad"):
        import_onnx(text_model("g (float[2] x, float[3] z) => (float[2] y) { y = Add(x, z) }", "/bad"))


def test_only_the_first_contradiction_is_told():
    """What follows from it ("Input 0 expected to have type but instead is null") hid it."""
    body = "{ a = Add(x, z) b = Relu(a) c = Add(b, x) y = Add(c, z) }"
    with pytest.raises(ModelError, match="halve images") as caught:
        import_onnx(text_model("g (float[2] x, float[3] z) => (float[2] y) " + body, "/n"))
    assert caught.value.message.count("op_type") == 1


@pytest.mark.parametrize(
    "body, match",
    [
        ("y = Reshape(x, s)", r"cannot give 1 x 10 x 8 elements the shape 1 x 48 x 4"),
        ("y = Expand(x, s)", "contradict each other"),
    ],
)
def test_sizes_that_an_exporter_fixed_are_asked_for(body, match):
    """The TorchScript exporter writes sizes of its example into the reshapes of nn.MultiheadAttention."""
    text = f"g (float[1, L, 8] x) => (float[A, B, C] y) <int64[3] s = {{1, 48, 4}}> {{ {body} }}"
    with pytest.raises(ModelError, match=f"{match}(?s:.)*exporters that trace.*--shape"):
        import_onnx(text_model(text), shapes={"x": (1, 10, 8)})


def test_invalid_attributes_and_types():
    with pytest.raises(ModelError, match="not valid ONNX.*sideways"):
        import_onnx(text_model("g (float[2] x) => (float[2] y) { y = Softmax<sideways = 1>(x) }"))
    with pytest.raises(ModelError, match="is text of input"):
        import_onnx(text_model("g (string[2] x) => (string[2] y) { y = Identity(x) }"))
    with pytest.raises(ModelError, match="is not a tensor"):
        import_onnx(text_model("g (seq(float[2]) x) => (int64 y) { y = SequenceLength(x) }"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.dims.append(7), "it has"),
        (lambda t: t.dims.__setitem__(0, -1), r"it has the shape \[-1"),
        (lambda t: setattr(t, "data_type", 999), "data type 999 is unknown"),
        (lambda t: setattr(t, "data_type", TensorProto.DOUBLE), "bytes, it has"),
        (lambda t: setattr(t, "raw_data", b""), "it has 0"),
        (lambda t: t.dims.__setitem__(0, 1 << 60), "needs"),
        (lambda t: setattr(t, "name", ""), "it has no name"),
    ],
)
def test_damaged_weights(change, message):
    source = add_weight(
        text_model("g (float[2,3] x) => (float[2,4] y) { y = MatMul(x, w) }"),
        "w",
        np.ones((3, 4), np.float32),
    )
    change(source.graph.initializer[0])
    with pytest.raises(ModelError, match=message):
        import_onnx(source)


def test_recursive_functions():
    source = text_model(
        "g (float[2] x) => (float[2] y) { y = my.f(x) }\n"
        '<domain: "my", opset_import: ["" : 17, "my" : 1]> f (a) => (b) { c = my.f(a) b = Add(c, a) }',
        extra=', "my": 1',
    )
    with pytest.raises(ModelError, match="recursive"):
        import_onnx(source)


def test_functions_are_expanded_and_named_after_their_call():
    source = text_model(
        "g (float[2,3] x) => (float[2,3] y) { a = my.twice(x) y = Tanh(a) }\n"
        '<domain: "my", opset_import: ["" : 17]> twice (p) => (r) { [inner] q = Exp(p) r = Add(q, p) }',
        "/call",
        "/end",
        extra=', "my": 1',
    )
    model = import_onnx(source)
    assert [binding.var.name for binding in bindings(model)] == ["/call/inner__1", "/call/Add", "/end"]


def test_operators_without_converter_are_expanded_by_their_definition():
    source = text_model(
        "g (float[1,4,8] q, float[1,4,8] k, float[1,4,8] v) => (float[1,4,8] y) {"
        " y = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v) }",
        "/attn",
        opset=23,
        ir=11,
    )
    model = import_onnx(source)
    assert {source_names(b.var).split("/")[1] for b in bindings(model)} == {"attn"}
    inputs = sample_inputs(model)
    assert compare(run_tvm(model, inputs), run_reference(model, inputs)).ok


def test_definitions_use_the_default_attributes():
    model = import_onnx(text_model("g (float[2,4] x) => (float[2,4] y) { y = Celu(x) }", "/act"))
    inputs = sample_inputs(model)
    assert compare(run_tvm(model, inputs), run_reference(model, inputs)).ok
    model = import_onnx(
        text_model("g (float[2,4] x) => (float[2,4] y) { y = Swish(x) }", "/s", opset=24, ir=12)
    )
    assert {source_names(b.var).split("/")[1] for b in bindings(model)} == {"s"}
    inputs = sample_inputs(model)
    assert compare(run_tvm(model, inputs), run_reference(model, inputs)).ok


@pytest.mark.parametrize(("operator", "factor"), [("LeakyRelu", 0.01), ("HardSigmoid", 0.2)])
def test_defaults_are_float32_numbers(operator, factor):
    """In float64 the default is the float32 number next to the one in ONNX's text."""
    model = import_onnx(text_model(f"g (double[2] x) => (double[2] y) {{ y = {operator} (x) }}"))
    (y,) = run_tvm(model, {"x": np.array([-1.0, 0.0])})
    assert abs(y[0] - y[1]) == pytest.approx(float(np.float32(factor)), rel=1e-12)


def test_defaults_are_those_of_the_opset():
    """Selu had others before opset 6."""
    model = import_onnx(text_model("g (float[1] x) => (float[1] y) { y = Selu (x) }", opset=5, ir=3))
    (y,) = run_tvm(model, {"x": np.array([1], np.float32)})
    assert y[0] == np.float32(1.0507)


@pytest.mark.parametrize("returned", ["x", "w"])
def test_what_reads_a_tensor_that_is_returned_as_it_is_has_a_shape(returned):
    """ONNX's inference takes the output without a shape for what it knows of the input or constant."""
    model = text_model(
        "g (double[2, 4] x) => (double[2, 4] y, double[N] z) <double[4] w = {1, 2, 3, 4}> {"
        " a = Add(x, w) y = LayerNormalization(a, w) }"
    )
    model.graph.output[1].CopyFrom(helper.make_tensor_value_info(returned, TensorProto.DOUBLE, None))
    x = np.random.default_rng(0).standard_normal((2, 4))
    y, same = run_tvm(import_onnx(model), {"x": x})
    wanted, given = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(y, wanted, atol=1e-6)  # the evaluator computes norms in float32
    np.testing.assert_array_equal(same, given)


def test_more_elements_than_an_axis_has_are_told_with_what_helps():
    text = "g (float[n,3] x) => (float[9,3] y, int64[9,3] i) { k = Constant<value_ints = [9]>()"
    text += " y, i = TopK<axis = 0>(x, k) }"
    with pytest.raises(ModelError, match="less than the requested k") as caught:
        import_onnx(text_model(text), shapes={"x": (8, 3)})
    assert "--shape NAME=16..64x3" in str(caught.value)
    assert import_onnx(text_model(text), shapes={"x": (9, 3)}).signature.outputs[0].shape == (9, 3)
