"""What labels and scores cannot be said of is refused by name."""

import pytest
from onnx import helper

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.bodies.scores import labels_of, post_transformed
from hetero_tvm.frontend.onnx.graph.body import Body


def body(**attributes):
    return Body(helper.make_node("LinearClassifier", ["x"], ["y", "s"], "c", **attributes), 20)


def test_labels_and_what_follows_scores():
    assert labels_of(body(classlabels_ints=[4, 2])) == [4, 2]
    made = body(post_transform="LOGISTIC")
    assert post_transformed(body(), "s") == "s" and post_transformed(made, "s") != "s"
    assert [node.op_type for node in made.nodes] == ["Sigmoid"]


def test_text_and_probits_are_refused():
    with pytest.raises(UnsupportedOperatorError, match="labels that are text"):
        labels_of(body(classlabels_strings=["a", "b"]))
    with pytest.raises(UnsupportedOperatorError, match="'c' .* PROBIT"):
        post_transformed(body(post_transform="PROBIT"), "s")
