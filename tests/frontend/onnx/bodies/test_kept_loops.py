"""Loops that stay loops: what their bodies become, and what is refused."""

import numpy as np
import pytest

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import against_reference, operators, run_onnxruntime, text_model

DECIDES = """g (float[2] x, int64 n) => (float[2] y, float[2,2] weight) {
  go = Constant <value = bool {1}> ()
  w = Constant <value = float[2,2] {0.5, 0.1, 0.2, 0.3}> ()
  y, weight = Loop <body = round (int64 i, bool going, float[2] a, float[2,2] v)
   => (bool on, float[2] b, float[2,2] same) {
    m = MatMul (a, v)
    b = Add (m, x)
    most = ReduceMax <keepdims = 0> (b)
    bound = Constant <value = float {1.5}> ()
    on = Less (most, bound)
    same = Identity (v)
  }> (n, go, x, w)
}"""
ROWS = """g (float[2] x{more}) => (float[2] y, float[{shown},2] all) {{
  go = Constant <value = bool {{1}}> ()
  {count}
  y, all = Loop <body = round (int64 i, bool going, float[2] a) => (bool on, float[2] b, float[2] row) {{
    on = Identity (going)
    step = Cast <to = 1> (i)
    b1 = Sin (a)
    b = Add (b1, step)
    row = Mul (b, x)
  }}> (n, go, x)
}}"""


@pytest.mark.parametrize("n", [0, 1, 3, 50])
def test_the_body_decides_how_long(n):
    inputs = {"x": np.array([0.4, 0.1], np.float32), "n": np.int64(n)}
    model = against_reference(text_model(DECIDES), inputs, judge="onnxruntime")
    assert operators(model)["Loop"] == 1


def test_states_that_no_round_changes_are_constants_of_the_body():
    graph = import_onnx(text_model(DECIDES)).onnx_model.graph
    (loop,) = (node for node in graph.node if node.op_type == "Loop")
    assert list(loop.output) == ["Loop_y/state_0"]
    names = {tensor.name for tensor in graph.initializer}
    product = next(node for node in loop.attribute[0].g.node if node.op_type == "MatMul")
    assert product.input[1] in names


@pytest.mark.parametrize("rounds, kept", [(3, 0), (300, 1), (3000, 1)])
def test_many_rounds_stay_a_loop_with_their_rows(rounds, kept):
    count = f"n = Constant <value = int64 {{{rounds}}}> ()"
    model = text_model(ROWS.format(more="", shown=rounds, count=count))
    inputs = {"x": np.array([0.4, 0.1], np.float32)}
    imported = import_onnx(model)
    assert operators(imported)["Loop"] == kept
    for ours, theirs in zip(
        run_onnxruntime(imported.onnx_model, inputs), run_onnxruntime(model, inputs), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_vectors_of_one_as_round_and_condition():
    text = DECIDES.replace("int64 i, bool going", "int64[1] i, bool[1] going").replace(
        "(bool on,", "(bool[1] on,"
    )
    text = text.replace(
        "on = Less (most, bound)",
        "less = Less (most, bound)\n    place = Constant <value_ints = [0]> ()"
        "\n    on = Unsqueeze (less, place)",
    )
    inputs = {"x": np.array([0.4, 0.1], np.float32), "n": np.array(9)}
    source = text_model(DECIDES)
    for ours, theirs in zip(
        run_onnxruntime(import_onnx(text_model(text)).onnx_model, inputs),
        run_onnxruntime(source, inputs),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_what_cannot_stay_a_loop_is_listed():
    grows = """g (float[2] x, int64 n) => (float[k] y, float[r,2] all) {
      go = Constant <value = bool {1}> ()
      y = Loop <body = first (int64 i, bool g1, float[m] a) => (bool on, float[k] b) {
        on = Identity (g1)
        b = Concat <axis = 0> (a, a)
      }> (n, go, x)
      z, all = Loop <body = second (int64 j, bool g2, float[2] c) => (bool still, float[2] d, float[2] row) {
        still = Identity (g2)
        d = Sin (c)
        row = Cos (c)
      }> (n, go, x)
    }"""
    with pytest.raises(UnsupportedOperatorError) as caught:
        import_onnx(text_model(grows, "go", "first_loop", "second_loop"))
    text = str(caught.value)
    assert "state 'a' is [2] before a round and [4] after it" in text
    assert "'second_loop' (Loop): it gives rows, and how many of them depends on values" in text
    assert "one shape for all rounds" in text and "--value NAME=NUMBER" in text
