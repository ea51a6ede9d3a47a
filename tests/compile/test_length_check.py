"""Comparison of models that round, at fixed sizes and at several."""

import numpy as np
import pytest

from hetero_tvm import Span
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.compile import build, length_check
from hetero_tvm.compile.length_check import differences
from hetero_tvm.errors import AccuracyError
from hetero_tvm.reference import Reference
from hetero_tvm.reference.running import run_as_given
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


@pytest.mark.parametrize(("times", "right"), [(1.0, True), (1.01, False)])
def test_where_the_files_own_sums_are_coarse_float64_tells(monkeypatch, times, right):
    """onnxruntime's variance of millions of values is a thousandth off."""
    text = "g (float[1,2,n] x) => (float[1,2,n] y) <float[2] one = {1, 1}, float[2] zero = {0, 0}>"
    model = text_model(text + " { y = InstanceNormalization(x, one, zero) }")
    plan = optimize_model(import_model(model, shapes={"x": (1, 2, Span(8, 64))}))
    monkeypatch.setattr(
        length_check,
        "run_as_given",
        lambda model, inputs, double=False: tuple(
            y if double else y * np.float32(1.002) for y in run_as_given(model, inputs, double=double)
        ),
    )

    def run(inputs):
        x = inputs["x"].astype(np.float64)
        y = (x - x.mean(2, keepdims=True)) / np.sqrt(x.var(2, keepdims=True) + 1e-5)
        return [(times * y).astype(np.float32)]

    assert (differences(plan, run, seed=0) == []) == right


@pytest.mark.parametrize("came", [True, False])
@pytest.mark.parametrize(("steps", "right"), [(0, True), (1, False)])
def test_a_step_of_one_value_is_no_measure_for_all(monkeypatch, steps, right, came):
    """Kernels that round all values down differ from float64 by no more than a value that float32 turned."""
    text = "g (float[n,8] x) => (float[n,8] y) <float step = {0.25}, int8 none = {0}>"
    model = text_model(text + " { q = QuantizeLinear(x, step, none) y = DequantizeLinear(q, step, none) }")
    plan = optimize_model(import_model(model, shapes={"x": (Span(8, 64), 8)}))

    def exact(inputs):
        return np.rint(inputs["x"].astype(np.float64) / 0.25) * 0.25

    def turned(inputs):
        y = exact(inputs).astype(np.float32)
        y[0, 0] += 0.25
        return y

    def given(model, inputs, double=False):
        return ((exact if double else turned)(inputs),) if came else None

    def reference(model, inputs):
        return Reference((turned(inputs),), (exact(inputs),), "a float32 that turned one value")

    monkeypatch.setattr(length_check, "run_as_given", given)
    monkeypatch.setattr(length_check, "run_reference", reference)

    def run(inputs):
        return [(exact(inputs) - steps * 0.25).astype(np.float32)]

    assert (differences(plan, run, seed=0) == []) == right


@pytest.mark.parametrize(("steps", "right"), [(0, True), (1, False)])
def test_nor_is_it_at_a_fixed_size(monkeypatch, steps, right):
    text = "g (float[16,8] x) => (float[16,8] y) <float step = {0.25}, int8 none = {0}>"
    model = text_model(text + " { q = QuantizeLinear(x, step, none) y = DequantizeLinear(q, step, none) }")
    built = build_model(optimize_model(import_model(model)))
    x = np.random.default_rng(0).normal(size=(16, 8)).astype("float32")
    exact = np.rint(x.astype(np.float64) / 0.25) * 0.25
    turned = exact.astype(np.float32)
    turned[0, 0] += 0.25
    reference = Reference((turned,), (exact,), "a float32 that turned one value")
    monkeypatch.setattr(build, "run_sampled", lambda model, seed: ({"x": x}, reference))
    monkeypatch.setattr(type(built), "run", lambda self, inputs: [(exact - steps * 0.25).astype(np.float32)])
    if right:
        assert built.check().ok
    else:
        with pytest.raises(AccuracyError, match="beyond the tolerance"):
            built.check()
