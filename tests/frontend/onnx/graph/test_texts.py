"""Inputs of text become places in the lists of their encoders, with the numbers of ONNX Runtime."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from hetero_tvm import Span
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import ModelError
from hetero_tvm.frontend.onnx.graph.texts import numbered_texts
from tests.selection import named

OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
CITIES, SEXES = ["oslo", "paris", "rome"], ["f", "m"]


def node(kind, inputs, outputs, **attributes):
    learning = kind in ("OneHotEncoder", "LabelEncoder", "CategoryMapper", "StringNormalizer")
    domain = "ai.onnx.ml" if learning and kind != "StringNormalizer" else ""
    return helper.make_node(kind, inputs, outputs, f"the {kind} of {outputs[0]}", domain=domain, **attributes)


def made(nodes, inputs, result=TensorProto.FLOAT, constants=()):
    texts = [helper.make_tensor_value_info(name, TensorProto.STRING, ["n", 1]) for name in inputs]
    results = [helper.make_tensor_value_info("y", result, None)]
    graph = helper.make_graph(nodes, "g", texts, results, list(constants))
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=10)


def constant(name, value, dtype):
    return helper.make_tensor(name, dtype, [len(value)], value)


COLUMNS = [
    node("OneHotEncoder", ["city"], ["a"], cats_strings=CITIES, zeros=1),
    node("OneHotEncoder", ["sex"], ["b"], cats_strings=SEXES, zeros=1),
    node("Concat", ["a", "b"], ["y"], axis=-1),
]
# As skl2onnx fills in the most frequent text where there is none.
FILLED = [
    node("Concat", ["city", "sex"], ["table"], axis=1),
    node("Gather", ["table", "zero"], ["column"], axis=1),
    node("Equal", ["column", "none"], ["is_none"]),
    node("LabelEncoder", ["zero"], ["most"], keys_int64s=[0], values_strings=["rome"], default_string="rome"),
    node("Where", ["is_none", "most", "column"], ["filled"]),
    node("OneHotEncoder", ["filled"], ["y"], cats_strings=CITIES, zeros=1),
]
CODES = [
    node("CategoryMapper", ["city"], ["a"], cats_strings=CITIES, cats_int64s=[7, 5, 3], default_int64=-9),
    node("LabelEncoder", ["sex"], ["b"], keys_strings=SEXES, values_int64s=[4, 2], default_int64=-1),
    node("Add", ["a", "b"], ["y"]),
]
GIVEN = {"city": ["rome", "mars", "oslo", ""], "sex": ["m", "f", "x", "f"]}
MODELS = {
    "columns": (made(COLUMNS, ["city", "sex"]), CITIES, SEXES),
    "filled in": (
        made(FILLED, ["city", "sex"], constants=[constant("zero", [0], 7), constant("none", [b""], 8)]),
        *[["rome", *CITIES[:2], ""]] * 2,
    ),
    "codes": (made(CODES, ["city", "sex"], TensorProto.INT64), CITIES, SEXES),
}


@pytest.mark.parametrize("name", named(list(MODELS), {"columns", "filled in"}))
def test_text_is_its_place_in_the_list_that_a_warning_gives(name):
    ort = pytest.importorskip("onnxruntime")
    proto, *lists = MODELS[name]
    with pytest.warns(UserWarning, match="text of input 'city' is int64 here: its place, from 0 on") as told:
        model = import_model(proto, shapes={"city": (Span(1, 4), 1), "sex": (Span(1, 4), 1)})
    said = [str(warning.message) for warning in told.list if "text of input" in str(warning.message)]
    assert len(said) == 2
    built = build_model(optimize_model(model))
    built.check()
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    texts = {key: np.array(values, object)[:, None] for key, values in GIVEN.items()}
    places = {
        key: np.array([known.index(text) if text in known else -1 for text in GIVEN[key]])[:, None]
        for key, known in zip(GIVEN, lists, strict=True)
    }
    for text, known in zip(said, lists, strict=True):
        assert all(repr(category) in text for category in known)
    np.testing.assert_array_equal(built.run(places)[0], session.run(None, texts)[0])


def test_text_that_no_encoder_lists_is_refused_by_the_node_that_reads_it():
    split = made([node("StringNormalizer", ["city"], ["y"], case_change_action="LOWER")], ["city"], 8)
    with pytest.raises(ModelError, match="'city' holds strings, which node 'the StringNormalizer of y'"):
        import_model(split, shapes={"city": (1, 1)})
    passed = made([node("Identity", ["city"], ["y"])], ["city"], 8)
    with pytest.raises(ModelError, match="'y' is text of input 'city'"):
        numbered_texts(passed)


def test_a_model_without_text_at_its_entrance_stays_as_it_is():
    named = [node("LabelEncoder", ["x"], ["y"], keys_int64s=[1], values_strings=["a"], default_string="b")]
    graph = helper.make_graph(
        named,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT64, [3])],
        [helper.make_tensor_value_info("y", TensorProto.STRING, [3])],
    )
    model = helper.make_model(graph, opset_imports=OPSETS)
    assert numbered_texts(model) is model
