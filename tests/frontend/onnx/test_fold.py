"""Folding: shape arithmetic, branches, no-ops; what is huge or random is left alone."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from hetero_tvm import zoo
from hetero_tvm.errors import ModelError
from hetero_tvm.frontend import import_model, import_onnx
from hetero_tvm.frontend.onnx.fold import Folder
from hetero_tvm.frontend.onnx.graph.constants import ConstantPool, rename_inputs
from hetero_tvm.frontend.onnx.graph.nodes import merge_identities
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


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E5M2"])
def test_weights_of_float8_become_float32(kind, axis):
    """No kernel reads them, and onnxruntime takes such files."""
    attributes = "" if axis is None else f"<axis = {axis}>"
    text = (
        f"g (float[2,3] x) => (float[2,4] y) {{ w = DequantizeLinear{attributes} (q, s) y = MatMul(x, w) }}"
    )
    source = text_model(text, opset=19, ir=9)
    values = np.random.default_rng(0).standard_normal(12).tolist()
    source.graph.initializer.append(helper.make_tensor("q", getattr(TensorProto, kind), [3, 4], values))
    scales = np.float32(0.5) if axis is None else np.linspace(0.1, 0.9, (3, 4)[axis], dtype=np.float32)
    add_weight(source, "s", np.asarray(scales))
    assert operators(against_original(source)) == {"MatMul": 1}


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
    with pytest.raises(ModelError, match="too large"):
        import_onnx(source)


def test_a_slice_that_sizes_make_empty():
    """At three rows ``rows // 2 // 3`` of them are none: nothing of x is read."""
    source = text_model(
        """g (float[1, rows, 4] x) => (float[1, some, 4] y)
        <int64[1] z = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}> {
            shape = Shape(x)
            rows = Gather<axis = 0>(shape, one)
            half = Div(rows, two)
            end = Div(half, three)
            y = Slice(x, z, end, one)
        }"""
    )
    model = import_onnx(source, shapes={"x": (1, 3, 4)})
    assert model.signature.outputs[0].shape == (1, 0, 4)


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


# ---- single steps --------------------------------------------------------------------------


def folded(body, types=None, opset=17):
    """Operators that folding leaves, and the constants that it found."""
    model = text_model(body, opset=opset)
    pool = ConstantPool()
    for tensor in model.graph.initializer:
        pool.add_tensor(tensor)
    del model.graph.initializer[:]
    Folder(pool, {"": opset}).run(model.graph, dict(types or {}))
    return [node.op_type for node in model.graph.node], {name: pool.array(name) for name in pool}


def test_every_spelling_of_a_constant():
    left, found = folded(
        "g () => (float a) { a = Constant<value = float[2] {1, 2}>() b = Constant<value_int = 3>() "
        "c = Constant<value_ints = [4, 5]>() d = Constant<value_float = 0.5>() "
        'e = Constant<value_floats = [6.0]>() f = Constant<value_string = "text">() }'
    )
    assert left == ["Constant"]  # strings stay
    kinds = {name: (array.dtype.name, array.tolist()) for name, array in found.items()}
    assert kinds == {
        "a": ("float32", [1, 2]),
        "b": ("int64", 3),
        "c": ("int64", [4, 5]),
        "d": ("float32", 0.5),
        "e": ("float32", [6.0]),
    }
    with pytest.raises(ModelError, match="2 values instead of one"):
        folded("g () => (int64 a) { a = Constant<value_int = 3, value_float = 1.0>() }")


SHORT_CUTS = {
    "gather": "r = Gather<axis = 1>(d, i)",
    "gather from the end": "r = Gather<axis = 0>(d, m)",
    "concat": "r = Concat<axis = -1>(d, d, d)",
    "unsqueeze": "r = Unsqueeze(s, z)",
    "unsqueeze at the end": "r = Unsqueeze(d, two)",
}


@pytest.mark.parametrize("step", SHORT_CUTS.values(), ids=SHORT_CUTS.keys())
def test_short_cuts_are_what_onnx_computes(step):
    body = (
        f"g () => (float[?] r) <int64[2,3] d = {{1, 2, 3, 4, 5, 6}}, int64[2] i = {{2, 0}}, "
        f"int64 m = {{-1}}, int64 s = {{7}}, int64[1] z = {{0}}, int64[1] two = {{2}}> {{ {step} }}"
    )
    left, found = folded(body)
    (expected,) = ReferenceEvaluator(text_model(body)).run(None, {})
    assert left == [] and found["r"].dtype == expected.dtype
    np.testing.assert_array_equal(found["r"], expected)


@pytest.mark.parametrize(
    "step",
    [
        "r = RandomNormal<shape = [2]>()",
        "r = RandomUniformLike(d)",
        "r = DequantizeLinear(q, one, q)",
        "r = Gather<axis = 0>(d, far)",  # outside: an error for run time
        "r = Slice(x, one, far)",
    ],
)
def test_random_quantized_and_impossible_nodes_stay(step):
    left, found = folded(
        "g (float[2] x) => (float[?] r) "
        "<float[2] d = {1, 2}, int64 far = {9}, int8 q = {3}, float one = {1.0}> "
        f"{{ {step} }}"
    )
    assert len(left) == 1 and "r" not in found


def test_a_dropout_that_trains_stays():
    body = (
        "g (float[2] x) => (float[2] y) <float half = {{0.5}}, bool on = {{{on}}}> "
        "{{ a = Dropout(x, half, on) y = Exp(a) }}"
    )
    assert folded(body.format(on=0))[0] == ["Exp"]
    assert folded(body.format(on=1))[0] == ["Dropout", "Exp"]


def test_a_branch_is_taken_with_its_constants():
    left, found = folded(
        "g (float[2] x) => (float[2] y) <bool c = {0}> { y = If(c) "
        "<then_branch = a () => (float[2] p) { p = Sin(x) }, "
        "else_branch = b () => (float[2] p) <float[2] w = {3, 4}> { q = Add(w, w) p = Mul(x, q) }> }"
    )
    assert left == ["Mul", "Identity"] and found["y/q"].tolist() == [6, 8]


def test_identities_before_outputs_merge():
    graph = text_model(
        "g (float[2] x) => (float[2] y, float[2] z, float[2] same) "
        "{ a = Exp(x) y = Identity(a) b = Neg(a) z = Identity(b) same = Identity(x) }"
    ).graph
    merge_identities(graph)
    assert [(n.op_type, *n.input, *n.output) for n in graph.node] == [
        ("Exp", "x", "y"),
        ("Neg", "y", "z"),
        ("Identity", "x", "same"),
    ]


def test_renaming_respects_names_of_subgraphs():
    """The inner ``a`` is another tensor than the outer one."""
    node = text_model(
        "g (bool c, float[2] x) => (float[2] y) { y = If(c) "
        "<then_branch = t () => (float[2] p) { p = Neg(x) }, "
        "else_branch = e () => (float[2] p) { x = Exp(c) p = Sin(x) }> }"
    ).graph.node[0]
    rename_inputs(node, {"x": "new", "c": "flag"})
    branches = {a.name: a.g for a in node.attribute}
    assert list(node.input) == ["flag"]
    assert list(branches["then_branch"].node[0].input) == ["new"]
    inner = branches["else_branch"].node
    assert list(inner[0].input) == ["flag"] and list(inner[1].input) == ["x"]


def test_shapes_are_known_after_what_was_folded():
    """A Reshape to a computed target has no inferred shape until the target is a constant."""
    left, found = folded(
        "g (float[2,6] x) => (int64[3] s) <int64[2] a = {3, 2}, int64[1] b = {2}> "
        "{ t = Concat<axis = 0>(a, b) r = Reshape(x, t) s = Shape(r) }",
        types={"x": (onnx.TensorProto.FLOAT, (2, 6))},
    )
    assert left == ["Reshape"] and found["s"].tolist() == [3, 2, 2]


def test_normalizations_of_constants_are_those_of_inference():
    source = text_model(
        """g (float[1,2,1] x) => (float[1,2,1] y) <
            float[2] s = {0.5, 2}, float[2] b = {1, -1}, float[2] m = {0.25, 3}, float[2] v = {0.5, 4},
            float[1,2,1] c = {1, 2}
        > {
            n = BatchNormalization(c, s, b, m, v)
            y = Add(n, x) }""",
        opset=13,
    )
    assert operators(against_original(source)) == {"Add": 1}


@pytest.mark.parametrize("kind, gates", [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize("results", [("", "h"), ("", "h", "c"), ("y", "", "c")])
def test_constant_results_keep_their_places(kind, gates, results):
    """A result without a name stands before those that have one."""
    if kind != "LSTM":
        results = results[:2]
    rng = np.random.default_rng(3)
    shapes = {"x": (2, 1, 3), "w": (1, gates * 4, 3), "r": (1, gates * 4, 4)}
    weights = [
        onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    layer = onnx.helper.make_node(kind, list(shapes), list(results), hidden_size=4)
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in results if name
    ]
    graph = onnx.helper.make_graph([layer], "g", [], values, weights)
    source = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=9)
    expected = ReferenceEvaluator(source).run(None, {})
    model = import_onnx(source)
    assert operators(model) == {}
    for result, truth in zip(run_tvm(model, {}), expected, strict=True):
        np.testing.assert_allclose(result, truth, rtol=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "(float[0,4] x, int64[2] i) => (float[2,4] y) { y = Gather(x, i) }",
        "(float[0,4] x) => (int64[1,4] y) { y = ArgMin(x) }",
        "(float[1,3,0,8] x) => (float[1,3,1,1] y) { y = GlobalMaxPool(x) }",
        "(float[0,3] x) => (float[2,3] y) { p = Constant<value_ints = [1, 0, 1, 0]>() "
        'y = Pad<mode = "edge">(x, p) }',
        "(float[1,1,0,4] x, float[1,2,2,2] g) => (float[1,1,2,2] y) { y = GridSample(x, g) }",
        "(float[1,1,0,4] x, float[2,4] r, int64[2] b) => (float[2,1,1,1] y) { y = RoiAlign(x, r, b) }",
        "(float[1,1,4,4] x) => (float[1,1,z,4] y) { s = Constant<value_ints = [1, 1, 0, 4]>() "
        "y = Resize(x, , , s) }",
        "(float[1,1,0,4] x) => (float[1,1,3,4] y) { s = Constant<value_ints = [1, 1, 3, 4]>() "
        "y = Resize(x, , , s) }",
    ],
)
def test_nothing_is_picked_from_nothing(text):
    """Kernels would read memory that is nobody's."""
    with pytest.raises(ModelError, match="none|without elements"):
        import_onnx(text_model(f"g {text}"))


def test_padding_nothing_with_a_constant_is_no_pick():
    text = "g (float[0,3] x) => (float[2,3] y) { p = Constant<value_ints = [1, 0, 1, 0]>() y = Pad(x, p) }"
    (result,) = run_tvm(import_onnx(text_model(text)), {"x": np.zeros((0, 3), np.float32)})
    assert result.shape == (2, 3) and not result.any()


def test_an_operand_that_does_not_expand():
    """ONNX's inference gives the operand's shape, as if nothing were asked for."""
    text = "g (float[4, 6] x, float[2, 6] z) => (float[a, 6] y) { s = Shape(z) y = Expand(x, s) }"
    with pytest.raises(ModelError, match="contradict each other"):
        import_onnx(text_model(text))
    same = "g (float[4, 6] x, float[1, 6] z) => (float[a, 6] y) { s = Shape(z) y = Expand(x, s) }"
    assert "Expand" not in operators(import_onnx(text_model(same)))
