"""Scans, loops and recurrent layers whose rounds are as many as a range of sizes has: they stay loops."""

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import hetero_tvm
from hetero_tvm.api import build_model, import_model, optimize_model
from tests.frontend.onnx.helpers import add_weight, run_onnxruntime, text_model

SCAN = """
agraph (float[s, 3] x, float[3] h) => (float[3] last, float[s, 3] rows) {
  last, rows = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [1],
    body = one (float[3] before, float[3] part) => (float[3] after, float[3] row) {
      sum = Add(before, part)
      after = Tanh(sum)
      row = Identity(after)
    }> (h, x)
}"""
LOOP = """
agraph (float[s, 3] x, float[3] h) => (float[3] last) {
  shape = Shape(x)
  count = Gather(shape, zero)
  last = Loop <body = one (int64 n, bool before, float[3] state) => (bool on, float[3] after) {
      on = Identity(before)
      part = Gather(x, n)
      sum = Add(state, part)
      after = Tanh(sum)
    }> (count, yes, h)
}"""


def built(model, shapes):
    return build_model(optimize_model(import_model(model, shapes=shapes), "cpu"), use_shipped=False)


def noise(*shape):
    return np.random.default_rng(shape).standard_normal(shape, np.float32)


def test_scan_of_an_open_length():
    model = text_model(SCAN)
    lib = built(model, {"x": (hetero_tvm.Span(1, 9), 3)})
    for steps in (1, 4, 9):
        given = {"x": noise(steps, 3), "h": noise(3)}
        for ours, theirs in zip(lib.run(given), run_onnxruntime(model, given), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)  # a dozen roundings of numbers below 1


@pytest.mark.thorough
def test_loop_over_an_open_length():
    model = add_weight(add_weight(text_model(LOOP), "zero", np.array(0)), "yes", np.array(True))
    lib = built(model, {"x": (hetero_tvm.Span(1, 9), 3)})
    for steps in (1, 6):
        given = {"x": noise(steps, 3), "h": noise(3)}
        np.testing.assert_allclose(lib.run(given)[0], run_onnxruntime(model, given)[0], atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("GRU", ""),  # the gate before the product, as Keras 1 and ONNX's default have it
        ("GRU", ', clip = 0.5, direction = "reverse"'),
        ("LSTM", ', clip = 0.5, direction = "bidirectional"'),
        ("LSTM", ", layout = 1"),
        ("LSTM", ', activations = ["HardSigmoid", "Relu", "Tanh"]'),
    ],
)
def test_layers_that_no_kernel_has(kind, attributes):
    hidden, ways = 4, 1 + ("bidirectional" in attributes)
    by_batch = "layout" in attributes
    operands = "x, w, r, b" + (", , , , p" if kind == "LSTM" else "")
    text = f"""agraph (float[{"b, s" if by_batch else "s, b"}, 3] x) => (y) {{
      y = {kind} <hidden_size = {hidden}{attributes}> ({operands})
    }}"""
    gates = {"GRU": 3, "LSTM": 4}[kind] * hidden
    model = text_model(text)
    for name, shape in (("w", (gates, 3)), ("r", (gates, hidden)), ("b", (2 * gates,)), ("p", (3 * hidden,))):
        if name in operands.split(", "):
            add_weight(model, name, noise(ways, *shape))
    lib = built(model, {"x": (hetero_tvm.Span(1, 3), hetero_tvm.Span(1, 3), 3)})
    for sizes in ((1, 1), (3, 2), (2, 3)):
        given = {"x": noise(*sizes, 3)}
        judge = ReferenceEvaluator(model).run(None, given) if by_batch else run_onnxruntime(model, given)
        np.testing.assert_allclose(lib.run(given)[0], judge[0], atol=1e-6)
