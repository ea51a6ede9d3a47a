"""Results of other runtimes that are no arrays of numbers."""

import numpy as np
import onnx
import pytest
from onnx import helper

from hetero_tvm.benchmarking.plain_results import plain_results


@pytest.fixture
def file(tmp_path):
    labels = ["wren", "owl", "jay"]
    node = helper.make_node("ZipMap", ["p"], ["y"], domain="ai.onnx.ml", classlabels_strings=labels)
    onnx.save(helper.make_model(helper.make_graph([node], "birds", [], [])), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_maps_are_scores_in_the_order_of_the_file(file):
    rows = [{"jay": 0.1, "owl": 0.2, "wren": 0.7}, {"jay": 0.5, "owl": 0.5, "wren": 0.0}]
    (scores,) = plain_results([rows], file)
    assert scores.tolist() == [[0.7, 0.2, 0.1], [0.0, 0.5, 0.5]]
    (scores,) = plain_results([[{3: 0.25, 4: 0.75}]], None)
    assert scores.tolist() == [[0.25, 0.75]]


def test_texts_are_their_places_among_the_labels(file):
    (numbers,) = plain_results([np.array(["jay", "wren"], object)], file)
    assert numbers.tolist() == [2, 0] and numbers.dtype == np.int64
    with pytest.raises(ValueError, match="does not list: crow"):
        plain_results([np.array(["crow"], object)], file)


def test_lists_of_tensors_are_their_tensors():
    first, second, third = plain_results([[np.ones(2), np.zeros(3)], np.ones((1, 1))], None)
    assert first.shape == (2,) and second.shape == (3,) and third.shape == (1, 1)
