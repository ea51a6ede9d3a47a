"""Declared shapes as promises: where they reach, and what values that break them give."""

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import HeteroTVMError
from tests.frontend.onnx.helpers import against_reference, text_model


def test_a_promise_reaches_through_elementwise_nodes():
    model = text_model(
        """g (int64 size, float f) => (float[5] y) {
          zero = Constant <value = int64 {0}> ()
          one = Constant <value = int64 {1}> ()
          steps = Range (zero, size, one)
          places = Cast <to = 1> (steps)
          scaled = Mul (places, f)
          y = Cos (scaled)
        }"""
    )
    against_reference(model, {"size": np.int64(5), "f": np.float32(0.5)})


def test_values_that_break_a_promise_are_an_error_that_names_the_node():
    model = text_model("g (float[1,3] x, int64[2] wide) => (float[2,3] y) { y = Expand (x, wide) }", "grow")
    built = build_model(optimize_model(import_model(model)), use_shipped=False)
    x = np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(built.run({"x": x, "wide": np.array([2, 1])})[0], np.ones((2, 3)))
    with pytest.raises(HeteroTVMError, match=r"grow: the values of wide must give the shapes"):
        built.run({"x": x, "wide": np.array([4, 1])})


def test_without_a_promise_the_node_is_refused():
    model = text_model("g (float[1,3] x, int64[2] wide) => (float[A,B] y) { y = Expand (x, wide) }", "grow")
    with pytest.raises(HeteroTVMError, match="'grow' .* depends on the values"):
        import_model(model)
