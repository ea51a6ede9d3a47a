"""Results become tensors of numbers, also maps and labels of text; one that is listed twice has two names."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.frontend.onnx.ends import plain_ends
from hetero_tvm.reference.running import run_double

ML = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
W = [1.0, -2.0, 0.5, 0.0, 1.0, 3.0, 0.3, 0.3, -4.0]


def classifier(**labels):
    """A linear classifier of three classes, as skl2onnx ends it by default."""
    nodes = [
        helper.make_node("LinearClassifier", ["x"], ["label", "scores"], "c", domain="ai.onnx.ml",
                         coefficients=W, intercepts=[0.1, 0.2, 0.3], post_transform="SOFTMAX", **labels),
        helper.make_node("ZipMap", ["scores"], ["maps"], "z", domain="ai.onnx.ml",
                         **{name.replace("_ints", "_int64s"): value for name, value in labels.items()}),
    ]  # fmt: skip
    kind = TensorProto.STRING if "classlabels_strings" in labels else TensorProto.INT64
    maps = onnx.ValueInfoProto(name="maps")
    maps.type.sequence_type.elem_type.map_type.key_type = kind
    maps.type.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
    label = helper.make_tensor_value_info("label", kind, ["n"])
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, ["n", 3])], [label, maps])
    return helper.make_model(graph, opset_imports=ML, ir_version=10)


@pytest.mark.parametrize(
    "labels", [{"classlabels_ints": [3, 7, 5]}, {"classlabels_strings": ["no", "so", "yes"]}]
)
def test_a_classifier_gives_tensors_of_numbers(labels):
    ort = pytest.importorskip("onnxruntime")
    made = classifier(**labels)
    x = np.random.default_rng(0).normal(size=(7, 3)).astype("float32")
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    label, maps = session.run(None, {"x": x})
    model = import_model(made, shapes={"x": (7, 3)})
    assert [str(spec.dtype) for spec in model.signature.outputs] == ["int64", "float32"]
    ours, scores = run_double(model.clean, {"x": x}, ["label", "maps"]).values()
    names = next(iter(labels.values()))
    assert (
        [names[i] for i in ours] == list(label)
        if "classlabels_strings" in labels
        else list(ours) == list(label)
    )
    np.testing.assert_allclose(scores, [[row[name] for name in names] for row in maps], rtol=1e-5, atol=1e-6)


def test_a_list_of_tensors_is_its_tensors():
    """As the scores of a MultiOutputClassifier."""
    nodes = [
        helper.make_node("Relu", ["x"], ["y_0"]),
        helper.make_node("Neg", ["y_0"], ["n"]),
        helper.make_node("SequenceConstruct", ["n", "y_0"], ["y"]),
    ]
    listed = onnx.ValueInfoProto(name="y")
    listed.type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [3])], [listed])
    model = import_model(helper.make_model(graph, opset_imports=ML, ir_version=10))
    assert [spec.name for spec in model.signature.outputs] == ["y_0_", "y_1"]
    negative, positive = build_model(optimize_model(model)).run({"x": np.array([1, -2, 3], "float32")})
    assert (list(negative), list(positive)) == ([-1, 0, -3], [1, 0, 3])


def test_other_models_stay_as_they_are():
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", 1, [3])], [helper.make_tensor_value_info("y", 1, [3])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=ML)
    assert plain_ends(model) is model


def test_a_result_that_is_listed_again_has_another_name():
    ort = pytest.importorskip("onnxruntime")
    values = [helper.make_tensor_value_info(name, 1, [3]) for name in ("y", "y_2", "y", "x", "y", "x")]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["y"], ["y_2"])],
        "g",
        [helper.make_tensor_value_info("x", 1, [3])],
        values,
    )
    model = helper.make_model(graph, opset_imports=ML, ir_version=10)
    x = np.array([-1, 2, 3], "float32")
    built = build_model(optimize_model(import_model(model)))
    assert built.check().ok
    names = [spec.name for spec in built.optimized.model.signature.outputs]
    assert names == ["y", "y_2", "y_3", "x", "y_4", "x_2"]
    expected = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, {"x": x}
    )
    for ours, theirs in zip(built.run({"x": x}), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
