"""Labels and scores of classifiers (ai.onnx.ml), shared by trees and linear models."""

from __future__ import annotations

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.graph.body import Body, as_text


def refuse(b: Body, what: str) -> UnsupportedOperatorError:
    """Error for a form of a node that is not written out."""
    return UnsupportedOperatorError(
        f"Node {b.node.name!r} ({b.node.op_type}) has {what}, which is not supported.",
        hint="Leave that step outside of the model.",
    )


def labels_of(b: Body) -> list[int]:
    """Labels of a classifier.

    Raises
    ------
    UnsupportedOperatorError : they are text; ``ends.py`` makes numbers of those at the end of a model.
    """
    for name in ("classlabels_int64s", "classlabels_ints"):
        if name in b.attributes:
            return [int(label) for label in b.attributes[name]]
    raise refuse(b, "labels that are text inside the model")


def post_transformed(b: Body, scores: str) -> str:
    """Scores [n, classes] behind the node's ``post_transform``."""
    how = as_text(b.attributes.get("post_transform", "NONE"))
    if how == "NONE":
        return scores
    if how == "LOGISTIC":
        return b.op("Sigmoid", scores)
    if how == "SOFTMAX":
        return b.op("Softmax", scores, axis=1)
    raise refuse(b, f"the post_transform {how}")
