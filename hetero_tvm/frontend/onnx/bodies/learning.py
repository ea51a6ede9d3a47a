"""Models of scikit-learn (ai.onnx.ml) in plain ONNX: scalers, encoders, linear models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto, numpy_helper

from hetero_tvm.frontend.onnx.bodies.scores import labels_of, post_transformed, refuse
from hetero_tvm.frontend.onnx.bodies.support_vectors import (
    support_vector_classifier,
    support_vector_regressor,
)
from hetero_tvm.frontend.onnx.bodies.trees import (
    tree_ensemble,
    tree_ensemble_classifier,
    tree_ensemble_regressor,
)
from hetero_tvm.frontend.onnx.graph.body import Body, as_text

DOMAIN = "ai.onnx.ml"


def _floats(b: Body, index: int = 0) -> str:
    return b.op("Cast", b.input(index), to=TensorProto.FLOAT)


def _linear(b: Body, x: str) -> str:
    """Scores [n, rows of the coefficients]."""
    shift = np.array(b.attributes.get("intercepts", []), np.float32)
    factors = np.array(b.attributes["coefficients"], np.float32)
    count = int(b.attributes.get("targets", len(shift) or 1))
    y = b.op("MatMul", x, b.const(factors.reshape(count, -1).T))
    return b.op("Add", y, b.const(shift)) if len(shift) else y


def linear_regressor(b: Body) -> None:
    """LinearRegressor: rows [n, features] -> numbers [n, targets]."""
    b.end(0, post_transformed(b, _linear(b, _floats(b))))


def linear_classifier(b: Body) -> None:
    """LinearClassifier: rows [n, features] -> labels [n], scores [n, classes]."""
    labels = labels_of(b)
    if len(labels) != len(b.attributes.get("intercepts", labels)):
        raise refuse(b, f"{len(b.attributes['intercepts'])} scores for {len(labels)} classes")
    b.attributes["targets"] = len(labels)
    scores = _linear(b, _floats(b))
    b.end(0, b.op("Gather", b.const(labels, "int64"), b.op("ArgMax", scores, axis=1, keepdims=0)))
    b.end(1, post_transformed(b, scores))


def scaler(b: Body) -> None:
    """Scaler: (x - offset) * scale."""
    x = _floats(b)
    if "offset" in b.attributes:
        x = b.op("Sub", x, b.const(b.attributes["offset"]))
    b.end(0, b.op("Mul", x, b.const(b.attributes.get("scale", [1.0]))))


def normalizer(b: Body) -> None:
    """Normalizer: rows by their largest value, sum of magnitudes, or length; rows of zeros stay."""
    x, norm = _floats(b), as_text(b.attributes.get("norm", "MAX"))
    if norm == "MAX":
        length = b.reduce("ReduceMax", x, [-1], 1, axes_as_input=18)
    elif norm == "L1":
        length = b.reduce("ReduceSum", b.op("Abs", x), [-1], 1, axes_as_input=13)
    else:
        length = b.op("Sqrt", b.reduce("ReduceSum", b.op("Mul", x, x), [-1], 1, axes_as_input=13))
    zero = b.op("Equal", length, b.const(0.0))
    b.end(0, b.op("Div", x, b.op("Where", zero, b.const(1.0), length)))


def imputer(b: Body) -> None:
    """Imputer: other numbers where one is missing (NaN, or a number that stands for it)."""
    whole = "imputed_value_int64s" in b.attributes
    kind, dtype = ("int64s", "int64") if whole else ("floats", "float32")
    gone = b.attributes.get("replaced_value_int64" if whole else "replaced_value_float", 0)
    x = b.input(0)
    lost = b.op("IsNaN", x) if gone != gone else b.op("Equal", x, b.const(gone, dtype))
    b.end(0, b.op("Where", lost, b.const(b.attributes[f"imputed_value_{kind}"], dtype), x))


def binarizer(b: Body) -> None:
    """Binarizer: 1 above the threshold, 0 elsewhere."""
    x = _floats(b)
    above = b.op("Greater", x, b.const(b.attributes.get("threshold", 0.0)))
    b.end(0, b.op("Cast", above, to=TensorProto.FLOAT))


def feature_vectorizer(b: Body) -> None:
    """FeatureVectorizer: columns of all inputs side by side."""
    b.end(0, b.op("Concat", *(_floats(b, n) for n in range(len(b.node.input))), axis=1))


def array_feature_extractor(b: Body) -> None:
    """ArrayFeatureExtractor: columns by index; a vector is a row."""
    x, shape = b.input(0), b.shape(b.input(0))
    places = b.op("Reshape", b.input(1), b.const([-1], "int64"))
    if shape is not None and len(shape) == 1:
        x = b.op("Reshape", x, b.const([1, -1], "int64"))
    b.end(0, b.op("Gather", x, places, axis=-1))


def one_hot_encoder(b: Body) -> None:
    """OneHotEncoder of whole numbers: 1 at the place of each among the categories.

    With ``zeros=0`` (scikit-learn's default) a category that is unknown is an error: its row is picked behind
    the last one, which a call refuses.
    """
    if "cats_int64s" not in b.attributes:
        raise refuse(b, "categories that are text")
    x = b.op("Cast", b.input(0), to=TensorProto.INT64)
    same = b.op(
        "Equal", b.op("Unsqueeze", x, b.const([-1], "int64")), b.const(b.attributes["cats_int64s"], "int64")
    )
    if b.attributes.get("zeros", 1):
        b.end(0, b.op("Cast", same, to=TensorProto.FLOAT))
        return
    count = len(b.attributes["cats_int64s"])
    hits = b.op("Cast", same, to=TensorProto.INT32)
    known = b.op("Cast", b.reduce("ReduceMax", hits, [-1], 0, axes_as_input=18), to=TensorProto.BOOL)
    row = b.op("Where", known, b.op("ArgMax", hits, axis=-1, keepdims=0), b.const(count, "int64"))
    b.end(0, b.op("Gather", b.const(np.eye(count), "float32"), row))


def label_encoder(b: Body) -> None:
    """LabelEncoder from numbers to numbers: a lookup with a default."""
    keys, values, default = _pairs(b)
    wide = b.op("Unsqueeze", b.input(0), b.const([-1], "int64"))
    table = b.const(keys, keys.dtype)
    same = b.op("Equal", wide, table)
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        same = b.op("Or", same, b.op("And", b.op("IsNaN", wide), b.op("IsNaN", table)))
    hits = b.op("Cast", same, to=TensorProto.INT32)
    found = b.op("Gather", b.const(values, values.dtype), b.op("ArgMax", hits, axis=-1, keepdims=0))
    known = b.op("Cast", b.reduce("ReduceMax", hits, [-1], 0, axes_as_input=18), to=TensorProto.BOOL)
    b.end(0, b.op("Where", known, found, b.const(default, values.dtype)))


def _pairs(b: Body) -> tuple[np.ndarray, np.ndarray, object]:
    """Keys, values, and the value of all others."""
    found = []
    for side in ("keys", "values"):
        name = next((n for n in b.attributes if n.startswith(f"{side}_")), "")
        value = b.attributes.get(name)
        array = numpy_helper.to_array(value) if hasattr(value, "dims") else np.array(value)
        if not name or array.dtype.kind not in "if":
            raise refuse(b, f"{side} that are text")
        wide = {"floats": "float32", "int64s": "int64"}.get(name.rpartition("_")[2])
        found.append((array if wide is None else array.astype(wide)).reshape(-1))
    whole = found[1].dtype.kind == "i"
    default = b.attributes.get("default_tensor")
    if default is not None:
        return found[0], found[1], numpy_helper.to_array(default).reshape(())
    return (
        found[0],
        found[1],
        b.attributes.get("default_int64" if whole else "default_float", -1 if whole else -0.0),
    )


EXPANSIONS: dict[str, Callable[[Body], None]] = {
    "ArrayFeatureExtractor": array_feature_extractor,
    "Binarizer": binarizer,
    "FeatureVectorizer": feature_vectorizer,
    "Imputer": imputer,
    "LabelEncoder": label_encoder,
    "LinearClassifier": linear_classifier,
    "LinearRegressor": linear_regressor,
    "Normalizer": normalizer,
    "OneHotEncoder": one_hot_encoder,
    "SVMClassifier": support_vector_classifier,
    "SVMRegressor": support_vector_regressor,
    "Scaler": scaler,
    "TreeEnsemble": tree_ensemble,
    "TreeEnsembleClassifier": tree_ensemble_classifier,
    "TreeEnsembleRegressor": tree_ensemble_regressor,
}
"""Operator of ai.onnx.ml -> function that writes it out."""
