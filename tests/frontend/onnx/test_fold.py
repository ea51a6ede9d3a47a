"""Folding: shape arithmetic, branches, no-ops; what is huge or random is left alone."""

import numpy as np
import pytest

from hetero_tvm import zoo
from hetero_tvm.frontend import import_model, import_onnx
from hetero_tvm.reference import compare, run_reference, sample_inputs
from tests.frontend.onnx.helpers import add_weight, against_original, operators, run_tvm, text_model


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


TINY = [name for name in zoo.names() if name.endswith("-tiny")]


def test_shape_arithmetic_folds_away():
    for name in TINY:
        left = {node.op_type for node in import_model(f"zoo:{name}").onnx_model.graph.node}
        assert not left & {"Shape", "ConstantOfShape", "Range", "Constant", "Identity", "Expand"} - {"Expand"}
        assert "Dropout" not in left
