"""Comparison at several sizes of models that round."""

import numpy as np
import pytest

from hetero_tvm import Span
from hetero_tvm.api import import_model, optimize_model
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
