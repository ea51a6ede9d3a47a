"""Comparison at several sizes of models that round."""

import numpy as np
import pytest

from hetero_tvm import Span
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.compile.length_check import differences
from tests.frontend.onnx.helpers import text_model

TIED = text_model(
    "g (float[n,4] x) => (float[n,4] y)"
    " <float zero = {0}, float half = {0.5}, float step = {1}, int8 none = {0}>"
    " { a = Mul(x, zero) b = Add(a, half) c = QuantizeLinear(b, step, none)"
    " y = DequantizeLinear(c, step, none) }"
)
"""Every value lies between two steps: the last bit says which of them it becomes."""


@pytest.fixture(scope="module")
def optimized():
    return optimize_model(import_model(TIED, shapes={"x": (Span(1, 6), 4)}))


@pytest.mark.parametrize(("value", "right"), [(0.0, True), (1.0, True), (2.5, False)])
def test_steps_on_the_other_side_of_a_half(optimized, value, right):
    found = differences(optimized, lambda inputs: [np.full(inputs["x"].shape, value, np.float32)], seed=0)
    assert (found == []) == right


def test_rows_of_edges_are_drawn_until_they_fit_the_least_number_of_nodes():
    """Two rows of a matrix of edges index the nodes: the import does not see that its values are places."""
    source = text_model(
        "g (float[n,2] x, int64[2,e] edges) => (float[e,2] y) <int64 one = {1}> "
        "{ h = Relu(x) from = Gather<axis = 0>(edges, one) y = Gather<axis = 0>(h, from) }"
    )
    shapes = {"x": (Span(2, 40), 2), "edges": (2, Span(9, 30))}
    built = build_model(optimize_model(import_model(source, shapes=shapes), "cpu"))
    assert built.check().ok
