"""Elements of sequences that the graph makes: their shapes are known."""

import numpy as np
import pytest

from tests.frontend.onnx.helpers import against_reference, operators, text_model

MADE = """
made (float[3, 4] x, float[2, 4] z) => (float[n, m] y)
<int64 first = {0}, int64 second = {1}, int64 last = {-1}, int64[1] whole = {-1}>
{
    none = SequenceEmpty ()
    one = SequenceInsert (none, x)
    two = SequenceInsert (one, z, first)
    three = SequenceInsert (two, x)
    less = SequenceErase (three, second)
    part = SequenceAt (less, PLACE)
    shape = Shape (part)
    flat = Reshape (part, whole)
    y = Reshape (flat, shape)
}
"""
INPUTS = {"x": np.arange(12, dtype=np.float32).reshape(3, 4), "z": np.ones((2, 4), np.float32)}


def made(place):
    return text_model(MADE.replace("PLACE", place))


@pytest.mark.parametrize("place", ["first", "second", "last"])
def test_elements(place):
    model = against_reference(made(place), INPUTS)
    assert not any(name.startswith("Sequence") for name in operators(model))


SPLIT = """
split (float[2, 5] x) => (float[2, m] y)
<int64[1] rounds = {2}, bool true = {1}, int64 one = {1}, int64[3] ends = {0, 2, 5}, int64[1] axis = {1},
 int64[1] zero = {0}, int64[2] all = {2, -1}>
{
    none = SequenceEmpty ()
    parts = Loop (rounds, true, none) <
      body: graph = cut (int64 i, bool go, seq(float) have) => (bool on, seq(float) more) {
        start = Gather (ends, i)
        next = Add (i, one)
        end = Gather (ends, next)
        from = Unsqueeze (start, zero)
        to = Unsqueeze (end, zero)
        part = Slice (x, from, to, axis)
        more = SequenceInsert (have, part)
        on = Identity (go)
    }>
    part1 = SequenceAt (parts, one)
    y = Reshape (part1, all)
}
"""


def test_a_split_that_is_a_loop():
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    model = against_reference(text_model(SPLIT), {"x": x})
    assert not any(name.startswith("Sequence") for name in operators(model))


MAPS = {
    "made": """
    s = SequenceConstruct (x, z)
    m = SequenceMap <body = each (float[k, 4] part) => (float[k, 4] out) { out = Exp (part) }> (s)
    y = ConcatFromSequence <axis = 0> (m)""",
    "pieces": """
    s = SplitToSequence <axis = 0> (x, two)
    m = SequenceMap <body = each (float[k, 4] part, float[2, 4] b) => (float[n, 4] out) {
        out = Concat <axis = 0> (part, b) }> (s, z)
    y = ConcatFromSequence <axis = 0> (m)""",
    "sizes": """
    s = SplitToSequence <axis = -1> (x, sizes)
    m = SequenceMap <body = each (float[3, k] part) => (float[3, k] out) { out = Exp (part) }> (s)
    y = ConcatFromSequence <axis = 1> (m)""",
    "rows": """
    s = SplitToSequence <axis = 0, keepdims = 0> (x)
    n = SequenceLength (s)
    y = Loop <body = step (int64 i, bool go, float[4] q) => (bool on, float[4] next) {
        row = SequenceAt (s, i)
        t = Tanh (q)
        next = Add (row, t)
        on = Identity (go) }> (n, true, zeros)""",
    "one piece": """
    s = SplitToSequence <axis = 0> (x, seven)
    y = SequenceAt (s, first)""",
}


@pytest.mark.parametrize("name", MAPS)
def test_loops_over_a_sequence_of_known_length(name):
    """Items of several shapes among them, which no state of a loop could have."""
    source = text_model(
        f"""g (float[3, 4] x, float[2, 4] z) => (y)
        <int64 two = {{2}}, int64[2] sizes = {{1, 3}}, bool true = {{1}}, int64 seven = {{7}},
         int64 first = {{0}}, float[4] zeros = {{0, 0, 0, 0}}> {{ {MAPS[name]} }}""",
        opset=17,
    )
    model = against_reference(source, INPUTS)
    assert {"Loop", "SplitToSequence", "SequenceLength"}.isdisjoint(operators(model))
