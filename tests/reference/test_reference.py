"""Sample inputs, both references, the verdict, and tensors inside the model."""

import sys

import numpy as np
import onnx
import pytest

from hetero_tvm import zoo
from hetero_tvm.errors import InputError, ModelError, UsageError
from hetero_tvm.frontend import import_model, import_onnx
from hetero_tvm.reference import (
    Reference,
    compare,
    intermediate,
    run_reference,
    sample_inputs,
    tensors_of_nodes,
    to_double,
)
from tests.frontend.onnx.helpers import add_weight, text_model

TINY = [name for name in zoo.names() if name.endswith("-tiny")]


# ---- inputs --------------------------------------------------------------------------------


def test_ids_stay_inside_their_tables_and_masks_end_in_zeros():
    inputs = sample_inputs(import_model("zoo:minilm-l6-tiny", batch=4))
    assert {name: (a.shape, a.dtype.name) for name, a in inputs.items()} == {
        name: ((4, 12), "int64") for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    assert 0 <= inputs["input_ids"].min() and 50 < inputs["input_ids"].max() < 101
    assert set(inputs["token_type_ids"].ravel()) == {0, 1}
    assert (inputs["attention_mask"] == [1] * 11 + [0]).all()


def test_seeds():
    model = import_model("zoo:vit-b16-tiny")
    one, same, other = (sample_inputs(model, seed)["pixel_values"] for seed in (1, 1, 2))
    assert np.array_equal(one, same) and not np.array_equal(one, other)
    assert one.dtype == np.float32 and 0.9 < one.std() < 1.1


def test_masks_by_use_and_other_types():
    source = text_model(
        "g (int64[1,8] keep, bool[16] b, int32[2] n, float[3] f, int64[1,5] position_ids) "
        "=> (float[1,8] y, bool[16] c, int32[2] m, float[3] e, int64[1,5] p) "
        "<float one = {1.0}> { k = Cast<to = 1>(keep) y = Sub(one, k) "
        "c = Not(b) m = Neg(n) e = Exp(f) p = Abs(position_ids) }"
    )
    inputs = sample_inputs(source)
    assert inputs["keep"].tolist() == [[1] * 7 + [0]]
    assert inputs["b"].dtype == bool and 0 < inputs["b"].sum() < 16
    assert inputs["n"].dtype == np.int32
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 3, 4]]


def test_symbolic_shapes_are_refused():
    source = text_model("g (float[N] x) => (float[N] y) { y = Exp(x) }")
    with pytest.raises(ModelError, match="'x' has no fixed shape"):
        sample_inputs(source)


# ---- references ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", TINY)
def test_float64_agrees_with_onnxruntime(name):
    pytest.importorskip("onnxruntime")
    model = import_model(f"zoo:{name}")
    reference = run_reference(model, sample_inputs(model))
    assert reference.float32_engine.startswith("onnxruntime")
    for single, double in zip(reference.float32, reference.float64, strict=True):
        assert single.dtype == np.float32 and double.dtype == np.float64
        error = np.abs(single - double).max() / np.abs(double).max()
        assert 0 < error < 3e-6  # zero would mean that double was computed in single precision


@pytest.mark.parametrize("name", ["bert-base-tiny", "mobilenetv2-tiny"])
def test_without_onnxruntime(name, monkeypatch):
    model = import_model(f"zoo:{name}")
    inputs = sample_inputs(model)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    reference = run_reference(model, inputs)
    assert "reference evaluator" in reference.float32_engine
    assert all(y.dtype == np.float32 for y in reference.float32)
    assert compare(reference.float32, reference).ok


def test_erf_is_computed_in_double():
    model = import_onnx(text_model("g (float[50] x) => (float[50] y) { y = Erf(x) }"))
    import math

    x = np.linspace(-3, 3, 50, dtype=np.float32)
    exact = [math.erf(float(v)) for v in x]
    assert np.abs(run_reference(model, {"x": x}).float64[0] - exact).max() == 0


def test_elements_of_a_long_axis_are_gathered():
    model = import_onnx(
        text_model("g (float[2,100] x, int64[1,3] i) => (float[1,3] y) {y = GatherElements<axis = 1>(x, i)}")
    )
    x = np.arange(200, dtype=np.float32).reshape(2, 100)
    (y,) = run_reference(model, {"x": x, "i": np.array([[99, -100, 7]])}).float64
    assert y.tolist() == [[99, 0, 7]]


@pytest.mark.parametrize(
    ("op", "attributes", "weight"),
    [
        ("Conv", {"pads": [1, 1, 1, 1], "strides": [2, 2]}, (6, 4, 3, 3)),
        ("Conv", {"pads": [0, 1, 2, 1], "dilations": [2, 1], "group": 2}, (6, 2, 3, 3)),
        ("Conv", {"pads": [1, 1, 1, 1], "group": 4}, (8, 1, 3, 3)),
        ("Conv", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (6, 4, 2, 2)),
        ("Conv", {"auto_pad": "SAME_LOWER", "strides": [2, 2]}, (6, 4, 2, 2)),
        ("Conv", {"auto_pad": "VALID"}, (6, 4, 3, 3)),
        ("MaxPool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}, None),
        ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}, None),
    ],
)
def test_convolutions_and_pools(op, attributes, weight):
    runtime = pytest.importorskip("onnxruntime")
    generator = np.random.default_rng(0)
    inputs = ["x"] if weight is None else ["x", "w", "b"]
    node = onnx.helper.make_node(op, inputs, ["y"], **attributes)
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, [2, 4, 9, 8])],
        [onnx.helper.make_tensor_value_info("y", 1, None)],
    )
    source = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    if weight is not None:
        add_weight(source, "w", generator.standard_normal(weight).astype(np.float32))
        add_weight(source, "b", generator.standard_normal(weight[0]).astype(np.float32))
    x = generator.standard_normal((2, 4, 9, 8)).astype(np.float32)
    from hetero_tvm.reference.running import run_double

    double = run_double(source, {"x": x}, ["y"])["y"]
    single = runtime.InferenceSession(source.SerializeToString()).run(None, {"x": x})[0]
    assert double.dtype == np.float64 and double.shape == single.shape
    np.testing.assert_allclose(double, single, rtol=1e-4, atol=1e-5)


def test_all_floats_become_double():
    source = text_model("""
        g (float16[2] h, int64[2] i) => (float[2] y) {
            f = Cast<to = 1>(h) j = Cast<to = 1>(i) s = Shape(i)
            z = ConstantOfShape(s)
            o = ConstantOfShape<value = float[1] {0.1}>(s)
            c = Constant<value_float = 0.5>()
            a = Add(f, j) b = Add(a, z) d = Mul(b, o) y = Mul(d, c)
        }""")
    model, _ = to_double(source)
    from onnx.reference import ReferenceEvaluator

    y = ReferenceEvaluator(model).run(None, {"h": np.array([0.5, 1.5]), "i": np.array([1, 2])})[0]
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, np.array([1.5, 3.5]) * np.float32(0.1) * 0.5, rtol=1e-15)
    assert source.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16


def test_wrong_inputs_are_all_named():
    model = import_model("zoo:minilm-l6-tiny")
    inputs = sample_inputs(model)
    inputs["input_ids"] = inputs["input_ids"].astype(np.int32)
    inputs["extra"] = inputs.pop("attention_mask")
    with pytest.raises(InputError) as caught:
        run_reference(model, inputs)
    assert caught.value.problems == (
        "there is no input 'extra'",
        "input_ids: int64[1, 12] expected, got int32[1, 12]",
        "input 'attention_mask' is missing",
    )


# ---- verdict -------------------------------------------------------------------------------


def reference_of(values, own_error=0.0):
    double = np.asarray(values, np.float64)
    return Reference(((double + own_error).astype(np.float32),), (double,), "test")


def test_tolerance_is_twice_the_own_error_or_a_fraction_of_the_largest():
    reference = reference_of([1.0, 100.0])
    assert compare(np.array([1.0, 100.0009], np.float64), reference).ok
    assert not compare(np.array([1.0, 100.0011], np.float64), reference).ok
    wide = reference_of([1.0, 100.0], own_error=0.01)
    assert compare(np.array([1.019, 100.0]), wide).ok
    accuracy = compare(np.array([1.021, 100.0]), wide)
    assert not accuracy.ok and "BEYOND TOLERANCE" in str(accuracy)
    assert accuracy.outputs[0].max_error == pytest.approx(0.021)
    assert accuracy.outputs[0].relative_error == pytest.approx(0.00021)
    assert accuracy.outputs[0].tolerance == pytest.approx(0.02, rel=1e-3)


def test_nan_and_infinity_must_agree():
    reference = reference_of([1.0, np.nan, np.inf, -np.inf])
    assert compare(np.array([1.0, np.nan, np.inf, -np.inf]), reference).ok
    for wrong in ([np.nan, np.nan, np.inf, -np.inf], [1, 0, np.inf, -np.inf], [1, np.nan, -np.inf, -np.inf]):
        accuracy = compare(np.array(wrong, np.float32), reference)
        assert not accuracy.ok
        assert "NaN or infinite" in str(accuracy)


def test_overflow_of_single_precision_is_not_an_error():
    reference = Reference((np.array([np.inf, 1], np.float32),), (np.array([1e39, 1.0]),), "test")
    assert compare(np.array([np.inf, 1], np.float32), reference).ok
    assert not compare(np.array([5.0, 1], np.float32), reference).ok


def test_integers_are_exact():
    reference = Reference((np.array([3, 4]),), (np.array([3, 4]),), "test")
    assert compare(np.array([3, 4]), reference).ok
    accuracy = compare(np.array([3, 5]), reference)
    assert not accuracy.ok and "1 of 2 integers differ" in str(accuracy)
    assert not compare(np.array([3.0, 4.0]), reference).ok


def test_shapes_and_counts():
    reference = reference_of([1.0, 2.0])
    assert "shape [3]" in str(compare(np.zeros(3), reference))
    with pytest.raises(UsageError, match="2 outputs given, the reference has 1"):
        compare([np.zeros(2), np.zeros(2)], reference)


def test_zero_outputs_and_empty_ones():
    assert compare(np.zeros(3, np.float32), reference_of([0.0, 0.0, 0.0])).ok
    assert not compare(np.full(3, 1e-9), reference_of([0.0, 0.0, 0.0])).ok
    assert compare(np.zeros((0, 2)), reference_of(np.zeros((0, 2)))).ok


# ---- inside the model ----------------------------------------------------------------------


def test_tensors_inside_the_model():
    model = import_model("zoo:minilm-l6-tiny")
    inputs = sample_inputs(model)
    softmax = tensors_of_nodes(model)["/encoder/layer.1/attention/self/Softmax"]
    assert softmax == ("/encoder/layer.1/attention/self/Softmax_output_0",)
    found = intermediate(model, inputs, [*softmax, "last_hidden_state", "input_ids"])
    assert found[softmax[0]].dtype == np.float64
    np.testing.assert_allclose(found[softmax[0]].sum(-1), 1, rtol=1e-12)
    # peaked, as trained attention is, and nothing on the padded position
    assert found[softmax[0]].max() > 0.2 and found[softmax[0]][..., -1].max() == 0
    assert np.array_equal(found["last_hidden_state"], run_reference(model, inputs).float64[0])
    assert np.array_equal(found["input_ids"], inputs["input_ids"])


def test_unknown_tensors_are_named():
    model = import_model("zoo:minilm-l6-tiny")
    with pytest.raises(UsageError, match="no tensor 'nothing'"):
        intermediate(model, sample_inputs(model), ["nothing"])
