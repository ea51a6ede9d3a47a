"""Counted tensors from their sources to the results of a model."""

import numpy as np
import onnx
import pytest

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.clean import clean
from hetero_tvm.frontend.onnx.counting import counts_of
from hetero_tvm.frontend.onnx.graph.detach import detached
from hetero_tvm.frontend.onnx.relax import supported_operators
from tests.frontend.onnx.counted.helpers import agrees, model_of
from tests.frontend.onnx.counted.test_sources import boxes

# What exporters of detectors write behind a network: boxes of all classes, best first.
DETECTOR = """(float[1,20,4] b, float[1,3,20] s) =>
(float[N,4] out_boxes, int64[N] labels, float[N] scores, int64 number) {
  most = Constant<value = int64[1] {5}>() limit = Constant<value = float[1] {0.3}>()
  least = Constant<value = float[1] {0.2}>() found = NonMaxSuppression(b, s, most, limit, least)
  two = Constant<value = int64 {2}>() one = Constant<value = int64 {1}>()
  zeros = Constant<value = int64[1] {0}>()
  ones = Constant<value = int64[1] {1}>() box = Gather<axis = 1>(found, two)
  class = Gather<axis = 1>(found, one)
  flat = Squeeze(b, zeros) all = Gather<axis = 0>(flat, box) pairs = Slice(found, ones, three, ones)
  three = Constant<value = int64[1] {3}>() sheet = Squeeze(s, zeros) score = GatherND(sheet, pairs)
  shape = Shape(score) ten = Constant<value = int64[1] {10}>() k = Min(shape, ten)
  scores, order = TopK(score, k)
  out_boxes = Gather<axis = 0>(all, order) labels = Gather<axis = 0>(class, order) number = Squeeze(k)
}"""


def test_a_detector():
    rng = np.random.default_rng(3)
    given = [{"b": boxes(20), "s": rng.random((1, 3, 20)).astype("float32")} for _ in range(2)]
    agrees(DETECTOR, *given, {"b": boxes(20), "s": np.zeros((1, 3, 20), "float32")})


def test_one_count_serves_all_results_that_have_it():
    model = model_of("(float[4] x) => (int64[1,N] y, float z, int64[N,1] t) "
                     "{ y = NonZero(x) t = Transpose(y) z = ReduceSum<keepdims = 0>(x) }")  # fmt: skip
    cleaned = clean(detached(model), supported_operators(), {}).proto
    assert [value.name for value in cleaned.graph.output] == ["y", "z", "t", "y_count"]
    assert counts_of(cleaned) == {"y": ((1, 3),), "t": ((0, 3),)}


def test_declared_shapes_are_taken_at_their_word():
    model = model_of("(float[4] x) => (int64[1,3] y) { y = NonZero(x) }")
    assert not counts_of(clean(detached(model), supported_operators(), {}).proto)


def test_nodes_that_take_no_counted_tensors_are_named():
    body = "(float[4] x) => (float[N] y) { i = NonZero(x) c = Cast<to = 1>(i) "
    body += 'y = Einsum<equation = "an->n">(c) }'
    with pytest.raises(UnsupportedOperatorError, match=r"'Einsum_y' \(Einsum\)"):
        clean(detached(model_of(body)), supported_operators(), {})


def test_models_without_such_operators_stay_as_they_are():
    model = model_of("(float[4] x) => (float[4] y) { y = Exp(x) }")
    assert not clean(detached(model), supported_operators(), {}).proto.metadata_props
    assert onnx.checker.check_model(model) is None


def test_extents_between_counted_layers_decide_shapes():
    """A cut to half of the width, as exporters write it, between a layer that selects rows and the next."""
    agrees(
        """(bool[4] m, float[1,4,6] x) => (float[1,N,3] y) {
          found = NonZero(m) flat = Constant<value = int64[1] {-1}>() rows = Reshape(found, flat)
          chosen = Gather<axis = 1>(x, rows) extents = Shape(chosen) one = Constant<value = int64[1] {1}>()
          number = Gather(extents, one) four = Constant<value = int64[1] {4}>() rest = Sub(four, number)
          zeros = Constant<value = int64[4] {0,0,0,0}>() zero = Constant<value = int64[1] {0}>()
          pads = Concat<axis = 0>(zeros, rest, zero) full = Pad(chosen, pads) shape = Shape(full)
          two = Constant<value = int64[1] {2}>() width = Gather(shape, two) real = Cast<to = 1>(width)
          share = Constant<value = float {0.5}>() scaled = Mul(real, share) end = Cast<to = 7>(scaled)
          part = Slice(full, zero, end, two) y = Gather<axis = 1>(part, rows)
        }""",
        {"m": np.array([1, 0, 1, 1], bool), "x": np.arange(24, dtype="float32").reshape(1, 4, 6)},
        {"m": np.zeros(4, bool), "x": np.ones((1, 4, 6), "float32")},
    )
