"""Support vector machines (ai.onnx.ml) in plain ONNX: kernels at the support vectors, sums, and votes."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from onnx import TensorProto

from hetero_tvm.frontend.onnx.bodies.scores import labels_of, post_transformed, refuse
from hetero_tvm.frontend.onnx.graph.body import Body, as_text

_MOST_CLASSES = 16
"""Classes up to which probabilities are written out: each takes some fifty nodes."""
_CLOSEST = 1e-7
"""Distance that probabilities of pairs keep from 0 and 1, as in ONNX Runtime."""


def support_vector_regressor(b: Body) -> None:
    """SVMRegressor: a sum of kernels at the support vectors, [n, 1]."""
    x = b.op("Cast", b.input(0), to=TensorProto.FLOAT)
    count = int(b.attributes.get("n_supports", 0))
    factors = np.array(b.attributes["coefficients"], np.float32)
    if b.attributes.get("one_class", 0):
        raise refuse(b, "one class")
    if count:
        vectors = np.array(b.attributes["support_vectors"], np.float32).reshape(count, -1)
        x = _kernel(b, x, vectors)
    y = b.op("MatMul", x, b.const(factors.reshape(-1, 1)))
    b.end(0, post_transformed(b, b.op("Add", y, b.const(b.attributes.get("rho", [0.0])))))


def support_vector_classifier(b: Body) -> None:
    """SVMClassifier: labels [n] by the votes of all pairs of classes, and a score of each pair or class.

    Two classes have the score of their pair twice, negated first.  With ``prob_a`` and ``prob_b`` the scores
    are probabilities of the classes.
    """
    labels = labels_of(b)
    x = b.op("Cast", b.input(0), to=TensorProto.FLOAT)
    factors = np.array(b.attributes["coefficients"], np.float64)
    shift = np.array(b.attributes.get("rho", [0.0]), np.float64)
    counts, two = list(b.attributes.get("vectors_per_class", [])), len(labels) == 2
    plain = as_text(b.attributes.get("post_transform", "NONE")) in ("NONE", "LOGISTIC")
    if not sum(counts):
        if two:
            raise refuse(b, "two classes and no support vectors")
        scores = b.op("MatMul", x, b.const(factors.reshape(len(labels), -1).T))
        scores = b.op("Add", scores, b.const(shift[0]))
        votes = scores
    else:
        b.attributes.setdefault("kernel_type", "LINEAR")
        vectors = np.array(b.attributes["support_vectors"], np.float32).reshape(sum(counts), -1)
        weights, first, second = _pairs_of_classes(counts, factors.reshape(len(counts) - 1, -1))
        scores = b.op("Add", b.op("MatMul", _kernel(b, x, vectors), b.const(weights)), b.const(shift))
        wins = b.op("Cast", b.op("Greater", scores, b.const(0.0)), to=TensorProto.FLOAT)
        # A vote for the first class of a pair is one less for the second, which has them all to begin with.
        votes = b.op("Add", b.op("MatMul", wins, b.const(first - second)), b.const(second.sum(0)))
        if b.attributes.get("prob_a"):
            scores = _probabilities(b, scores, len(labels))
        elif two and not plain:
            raise refuse(b, "two classes without probabilities and a post_transform but LOGISTIC")
        elif two:
            scores = b.op("Mul", scores, b.const([-1.0, 1.0]))
    b.end(0, b.op("Gather", b.const(labels, "int64"), b.op("ArgMax", votes, axis=1, keepdims=0)))
    b.end(1, post_transformed(b, scores))


def _pairs_of_classes(counts: list[int], factors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights [vectors, pairs] of kernels in the pairs' scores; the pairs' first and second classes, one-hot.

    ``factors`` [classes - 1, vectors] : of a vector of class i, against the classes before i, then behind.
    """
    starts = np.concatenate([[0], np.cumsum(counts)])
    pairs = list(combinations(range(len(counts)), 2))
    weights = np.zeros((starts[-1], len(pairs)))
    first, second = np.zeros((2, len(pairs), len(counts)))
    for n, (i, j) in enumerate(pairs):
        weights[starts[i] : starts[i + 1], n] = factors[j - 1, starts[i] : starts[i + 1]]
        weights[starts[j] : starts[j + 1], n] = factors[i, starts[j] : starts[j + 1]]
        first[n, i] = second[n, j] = 1
    return weights, first, second


def _probabilities(b: Body, scores: str, classes: int) -> str:
    """Probabilities [n, classes] out of scores of pairs, by the iteration of libsvm and ONNX Runtime.

    It ends for a row once all errors are below 0.005 / classes: after 2 rounds where classes are two, after
    3 to 4 where they are more.
    """
    if classes > _MOST_CLASSES:
        raise refuse(b, f"probabilities of {classes} classes (of at most {_MOST_CLASSES})")
    steep, shift = (b.const(b.attributes[name]) for name in ("prob_a", "prob_b"))
    own = b.op("Sigmoid", b.op("Neg", b.op("Add", b.op("Mul", scores, steep), shift)))
    own = b.op("Clip", own, b.const(_CLOSEST), b.const(1 - _CLOSEST))
    sides = b.op("Concat", own, b.op("Sub", b.const(1.0), own), axis=1)
    pairs = list(combinations(range(classes), 2))
    places = {pair: n for n, pair in enumerate(pairs)} | {
        (j, i): len(pairs) + n for n, (i, j) in enumerate(pairs)
    }

    def column(x: str, n: int) -> str:
        return b.op("Gather", x, b.const([n], "int64"), axis=1)

    rows, diagonal = [], []
    for t in range(classes):
        others = [j for j in range(classes) if j != t]
        against = b.op("Gather", sides, b.const([places[j, t] for j in others], "int64"), axis=1)
        squares = b.reduce("ReduceSum", b.op("Mul", against, against), [1], 1, axes_as_input=13)
        diagonal.append(squares)
        parts = [
            squares
            if j == t
            else b.op("Neg", b.op("Mul", *(column(sides, places[s]) for s in ((j, t), (t, j)))))
            for j in range(classes)
        ]
        rows.append(b.op("Concat", *parts, axis=1))
    # Each element begins at 1 / classes, so that the products begin at the means of rows.
    products = b.op("Concat", *(b.mean(row) for row in rows), axis=1)
    chances = b.op("Add", b.op("Mul", products, b.const(0.0)), b.const(1 / classes))
    for _ in range(2 if classes == 2 else 5):
        total = b.reduce("ReduceSum", b.op("Mul", chances, products), [1], 1, axes_as_input=13)
        errors = b.op("Abs", b.op("Sub", products, total))
        worst = b.reduce("ReduceMax", errors, [1], 1, axes_as_input=18)
        ready = b.op("Less", worst, b.const(0.005 / classes))
        p, q = chances, products
        for t in range(classes):
            step = b.op("Div", b.op("Sub", total, column(q, t)), diagonal[t])
            scale = b.op("Add", step, b.const(1.0))
            unit = b.const([[float(j == t) for j in range(classes)]])
            twice = b.op("Mul", column(q, t), b.const(2.0))
            change = b.op("Mul", step, b.op("Add", b.op("Mul", step, diagonal[t]), twice))
            total = b.op("Div", b.op("Add", total, change), b.op("Mul", scale, scale))
            q = b.op("Div", b.op("Add", q, b.op("Mul", step, rows[t])), scale)
            p = b.op("Div", b.op("Add", p, b.op("Mul", step, unit)), scale)
        chances, products = (b.op("Where", ready, *pair) for pair in ((chances, p), (products, q)))
    return chances


def _kernel(b: Body, x: str, vectors: np.ndarray) -> str:
    """Kernels [n, vectors] of rows and support vectors."""
    kind = as_text(b.attributes.get("kernel_type", "LINEAR"))
    gamma, constant, degree = (list(b.attributes.get("kernel_params", [])) + [0.0] * 3)[:3]
    product = b.op("MatMul", x, b.const(vectors.T))
    if kind == "LINEAR":
        return product
    if kind == "RBF":
        squares = b.reduce("ReduceSum", b.op("Mul", x, x), [1], 1, axes_as_input=13)
        own = (vectors.astype(np.float64) ** 2).sum(1)
        cross = b.op("Mul", product, b.const(-2.0))
        distance = b.op("Add", b.op("Add", squares, cross), b.const(own))
        return b.op("Exp", b.op("Mul", distance, b.const(-gamma)))
    shifted = b.op("Add", b.op("Mul", product, b.const(gamma)), b.const(constant))
    if kind == "SIGMOID":
        return b.op("Tanh", shifted)
    if kind == "POLY":
        return b.op("Pow", shifted, b.const(degree))
    raise refuse(b, f"the kernel {kind}")
