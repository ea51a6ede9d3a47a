"""Models that round floats to steps are judged by what rounding errors may do."""

import dataclasses
import functools

import numpy as np

from hetero_tvm.frontend import import_onnx
from hetero_tvm.reference import compare, judge, rounds, run_reference, with_rounding
from tests.frontend.onnx.helpers import text_model

STEPS = """g (float[2, 3] x) => (float[2, 3] y) {
  k = Constant<value = float {0.1}>() h = Mul(x, k) r = Round(h) y = Mul(r, x)
}"""
SMOOTH = "g (float[2, 3] x) => (float[2, 3] y) { y = Mul(x, x) }"
EDGE = 25.0  # a tenth of it lies between two steps
INPUTS = {"x": np.float32([[EDGE, 10.0, 20.0], [31.0, 3.0, 4.0]])}


def test_models_that_round():
    assert rounds(import_onnx(text_model(STEPS)))
    assert not rounds(import_onnx(text_model(SMOOTH)))


def test_a_value_between_two_steps_may_go_either_way_and_others_may_not():
    model = import_onnx(text_model(STEPS))
    wide = with_rounding(run_reference(model, INPUTS), model, INPUTS)
    (exact,), (spread,) = wide.float64, wide.spread
    assert abs(spread[0, 0] - EDGE) < 1e-3
    assert spread[0, 1:].max() < 1e-3 and spread[1].max() < 1e-3
    other = exact.astype(np.float32)
    other[0, 0] = EDGE * (2 if exact[0, 0] > 2.5 * EDGE else 3)
    assert compare([other], wide).ok
    lucky = dataclasses.replace(wide, float32=(exact.astype(np.float32),), spread=())
    assert not compare([other], lucky).ok
    assert not compare([exact + 3 * EDGE], wide).ok


POOL = """g (float[1, 1, 2, 4] x) => (float[1, 1, 1, 2] y, int64[1, 1, 1, 2] i) {
  y, i = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
}"""
TOP = """g (float[4] x) => (float[2] y, int64[2] i) {
  k = Constant<value = int64[1] {2}>() y, i = TopK(x, k)
}"""


def test_the_place_of_the_largest_is_open_among_those_that_nearly_tie():
    model = import_onnx(text_model(POOL))
    assert rounds(model) and rounds(import_onnx(text_model(TOP)))
    near = np.float32(-0.17) * (1 + np.float32(1e-7))
    image = {"x": np.float32([[[[-0.17, near, 1.5, 2.5], [-3.0, -4.0, 0.5, 1.0]]]])}
    wide = with_rounding(run_reference(model, image), model, image)
    values, places = (array.copy() for array in wide.float64)
    assert places.ravel().tolist() == [0, 3]
    places[..., 0] = 1
    assert compare([values, places], wide).ok
    for wrong in ([4, 3], [0, 2]):
        assert not compare([values, np.array(wrong).reshape(places.shape)], wide).ok


def test_what_is_exact_in_float32_does_not_spread():
    model = import_onnx(text_model(STEPS))
    whole = {"x": np.zeros((2, 3), np.float32)}
    (spread,) = with_rounding(run_reference(model, whole), model, whole).spread
    assert not spread.any()


def test_where_large_terms_cancel_a_lucky_reference_is_no_judge():
    """What float32 makes of ``a * a - b * b`` is off by a share of the terms; a fault is off by more."""
    model = import_onnx(
        text_model("g (float[4] a, float[4] b) => (float[4] y) { c = Mul(a, a) d = Mul(b, b) y = Sub(c, d) }")
    )
    inputs = {"a": np.float32([300.1, 7, 8, 9]), "b": np.float32([300, 7, 8, 9])}
    reference = run_reference(model, inputs)
    (exact,) = reference.float64
    lucky = dataclasses.replace(reference, float32=(exact.astype(np.float32),))
    judged = functools.partial(
        judge, reference=lucky, inputs=inputs, model_of=lambda: model, floor=1e-5, least_cosine=-1.0
    )
    assert judged([exact * np.float32(1 + 3e-5)]).ok  # 2e-8 of the terms
    assert not judged([exact * np.float32(1 + 1e-3)]).ok
    moved = exact.astype(np.float32)
    moved[1] += 3e-3
    assert not judged([moved]).ok  # more than four tolerances are a fault, whatever cancels


def test_a_cast_cuts_what_lies_just_below_a_whole_number_to_either():
    model = import_onnx(
        text_model("g (float[4] x) => (int64[4] y) { t = Tanh(x) h = Add(t, x) y = Cast<to = 7>(h) }")
    )
    inputs = {"x": np.float32([2.0336692, 0.5, 1.5, 0.1])}  # the first becomes 3 less a rounding error
    reference = run_reference(model, inputs)
    judged = functools.partial(
        judge, reference=reference, inputs=inputs, model_of=lambda: model, floor=1e-5, least_cosine=-1.0
    )
    assert judged([np.array([2, 0, 2, 0])]).ok and judged([np.array([3, 0, 2, 0])]).ok
    assert not judged([np.array([3, 0, 3, 0])]).ok


CENTRED = """g (double[8] x) => (double[1] y) {
  m = ReduceMean(x) d = Sub(x, m) y = ReduceSum(d)
}"""


def test_sums_in_float64_that_cancel_are_judged_by_their_terms():
    """The gradient of a bias before a batch normalization is such a sum: no digit of it is right."""
    model = import_onnx(text_model(CENTRED))
    inputs = {"x": np.random.default_rng(0).normal(size=8)}
    reference = run_reference(model, inputs)
    (exact,) = reference.float64
    judged = functools.partial(
        judge, reference=reference, inputs=inputs, model_of=lambda: model, floor=1e-5, least_cosine=-1.0
    )
    assert judged([exact + 1e-15]).ok
    assert not judged([exact + 1e-3]).ok
