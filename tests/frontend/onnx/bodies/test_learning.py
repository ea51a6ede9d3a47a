"""Steps and models of scikit-learn compute what ONNX Runtime computes."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import LibraryError, UnsupportedOperatorError
from hetero_tvm.frontend.onnx.importer import import_onnx
from hetero_tvm.reference.running import run_double

ort = pytest.importorskip("onnxruntime")
ML = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 4)]
RANDOM = np.random.default_rng(0)
X = np.array([[0.0, 0.0, 0.0], [1.5, -2.0, 0.25], [-1.0, 3.0, 7.0], [2.0, 2.0, -2.0]], "float32")
WHOLE = np.array([[1, 5, -3], [2, 9, 5]], "int64")


def model(kind, inputs, results, **attributes):
    types = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
    names = [f"x{n}" for n in range(len(inputs))]
    node = helper.make_node(
        kind, names, [f"y{n}" for n in range(len(results))], "step", domain="ai.onnx.ml", **attributes
    )
    ends = [
        helper.make_tensor_value_info(n, types[str(x.dtype)], x.shape)
        for n, x in zip(names, inputs, strict=True)
    ]
    outs = [helper.make_tensor_value_info(f"y{n}", types[dtype], None) for n, dtype in enumerate(results)]
    return helper.make_model(helper.make_graph([node], "g", ends, outs), opset_imports=ML, ir_version=10)


CASES = {
    "scaler": ("Scaler", [X], ["float32"], {"offset": [0.5, 1.0, -1.0], "scale": [2.0, 0.5, 3.0]}),
    "max": ("Normalizer", [X], ["float32"], {"norm": "MAX"}),
    "l1": ("Normalizer", [X], ["float32"], {"norm": "L1"}),
    "l2": ("Normalizer", [X], ["float32"], {"norm": "L2"}),
    "binarizer": ("Binarizer", [X], ["float32"], {"threshold": 0.25}),
    "missing": ("Imputer", [np.where(X > 2, np.nan, X).astype("float32")], ["float32"],
                {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": float("nan")}),
    "zeros": ("Imputer", [X], ["float32"], {"imputed_value_floats": [9.0], "replaced_value_float": 0.0}),
    "columns": ("ArrayFeatureExtractor", [X, np.array([[2, 0]])], ["float32"], {}),
    "one hot": ("OneHotEncoder", [WHOLE], ["float32"], {"cats_int64s": [5, 1, 9], "zeros": 1}),
    "one hot, all known": ("OneHotEncoder", [WHOLE], ["float32"],
                           {"cats_int64s": [9, 5, -3, 1, 2], "zeros": 0}),
    "labels": ("LabelEncoder", [WHOLE], ["float32"],
               {"keys_int64s": [5, 1, 9], "values_floats": [0.5, 0.1, 0.9], "default_float": -2.0}),
    "labels of floats": ("LabelEncoder", [np.array([0.5, np.nan, 3], "float32")], ["int64"],
                         {"keys_floats": [float("nan"), 0.5], "values_int64s": [4, 8]}),
    "linear": ("LinearRegressor", [X], ["float32"],
               {"coefficients": [1.0, -2.0, 0.5, 0.0, 1.0, 3.0], "intercepts": [0.5, -1.0], "targets": 2}),
    "classes": ("LinearClassifier", [X], ["int64", "float32"],
                {"coefficients": RANDOM.normal(size=9).tolist(), "intercepts": [0.1, 0.2, 0.3],
                 "classlabels_ints": [4, 2, 9], "post_transform": "SOFTMAX"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_against_onnxruntime(case):
    kind, inputs, results, attributes = case
    made = model(kind, inputs, results, **attributes)
    fed = {f"x{n}": x for n, x in enumerate(inputs)}
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [f"y{n}" for n in range(len(results))]
    ours = run_double(import_onnx(made).clean, fed, names)
    for name, their in zip(names, session.run(names, fed), strict=True):
        assert ours[name].shape == their.shape
        np.testing.assert_allclose(ours[name], their, rtol=2e-5, atol=1e-5)


def test_text_is_refused_by_node():
    with pytest.raises(UnsupportedOperatorError, match=r"'step' \(LabelEncoder\) has values that are text"):
        import_onnx(model("LabelEncoder", [WHOLE], ["int64"], keys_int64s=[1], values_strings=["a"]))
    with pytest.raises(UnsupportedOperatorError, match="categories that are text"):
        import_onnx(model("OneHotEncoder", [WHOLE], ["float32"], cats_strings=["a"]))


def test_unknown_categories_are_an_error_where_the_file_says_so():
    source = model("OneHotEncoder", [WHOLE], ["float32"], cats_int64s=[9, 5, -3, 1, 2], zeros=0)
    built = build_model(optimize_model(import_model(source)))
    built.run({"x0": WHOLE})
    with pytest.raises(LibraryError, match=r"step.*: an index lies outside"):
        built.run({"x0": WHOLE + 1})
