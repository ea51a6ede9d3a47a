"""Rounds of loops, counted by their own arithmetic."""

import numpy as np
import onnx
import pytest

from hetero_tvm.frontend.onnx.graph.rounds import counted_rounds


def _body(text: str) -> onnx.GraphProto:
    return onnx.parser.parse_graph(text)


HALVES = """round (int64 i, bool going, float a, float x) => (bool on, float b, float y) {
  b = Mul (a, half)
  on = Greater (b, limit)
  y = Add (x, a)
}"""


@pytest.mark.parametrize("limit, rounds", [(0.6, 1), (0.3, 2), (0.03125, 5), (0.0, None)])
def test_rounds_until_the_condition_fails(limit: float, rounds: int | None):
    known = {"half": np.float32(0.5), "limit": np.float32(limit), "a": np.float32(1)}
    assert counted_rounds(_body(HALVES), 17, known.get, 20) == rounds  # x plays no part, and is not known


def test_the_number_of_the_round_and_the_condition_count_too():
    body = _body("round (int64 i, bool going) => (bool on) { low = Less (i, n)  on = And (low, going) }")
    assert counted_rounds(body, 17, {"n": np.int64(4)}.get, 20) == 5


def test_what_depends_on_the_input_is_not_counted():
    known = {"half": np.float32(0.5), "limit": np.float32(0.1)}
    assert counted_rounds(_body(HALVES), 17, known.get, 20) is None
    assert counted_rounds(_body(HALVES), 17, {"a": np.float32(1)}.get, 20) is None
    large = {"half": np.float32(0.5), "limit": np.float32(0.1), "a": np.ones(100, np.float32)}
    assert counted_rounds(_body(HALVES), 17, large.get, 20) is None
