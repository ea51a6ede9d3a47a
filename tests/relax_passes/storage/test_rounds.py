"""Loops that stay loops: ONNX Runtime's numbers, whatever the number of rounds."""

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import BuildError
from hetero_tvm.ops.loops.rounds import loop_of
from hetero_tvm.relax_passes.storage import rounds
from tests.frontend.onnx.helpers import run_onnxruntime, text_model
from tests.selection import thorough

HEAD = "g (float[2,3] x, int64 n, bool go, float limit) => "
STOPS = (
    HEAD
    + """(float[2,3] y, float[2,3] z, int64[1] count) {
  begin = Exp (x)
  one = Constant <value_ints = [1]> ()
  zero = Constant <value_ints = [0]> ()
  y, count = Loop <body = round (int64 i, bool going, float[2,3] a, int64[1] c)
    => (bool on, float[2,3] b, int64[1] d) {
      t = Tanh (a)
      r = Add (a, t)
      b = Add (r, begin)
      total = ReduceSum <keepdims = 0> (b)
      on = Less (total, limit)
      d = Add (c, one)
  }> (n, go, x, zero)
  z = Mul (begin, y)
}"""
)
SWAPS = (
    HEAD
    + """(float[2,3] y, float[2,3] z, float[2,3] same) {
  other = Exp (x)
  y, z, same = Loop <body = round (int64 i, bool going, float[2,3] a, float[2,3] b, float[2,3] c)
    => (bool on, float[2,3] b1, float[2,3] a1, float[2,3] c1) {
      on = Identity (going)
      b1 = Identity (b)
      a1 = Identity (a)
      c1 = Identity (c)
  }> (n, go, x, other, limit_wide)
}""".replace("other = Exp (x)", "other = Exp (x)\n  limit_wide = Add (x, limit)")
)
NESTED = (
    HEAD
    + """(float[2,3] y) {
  weight = Sigmoid (x)
  y = Loop <body = outer (int64 i, bool going, float[2,3] a) => (bool on, float[2,3] b) {
      on = Identity (going)
      inner_limit = Add (i, i)
      half = Mul (a, weight)
      s = Loop <body = inner (int64 j, bool more, float[2,3] p) => (bool still, float[2,3] q) {
          q1 = Mul (p, weight)
          q = Add (q1, half)
          size = ReduceSum <keepdims = 0> (q)
          still = Less (size, limit)
      }> (inner_limit, going, a)
      b = Tanh (s)
  }> (n, go, x)
}"""
)
TWICE = (
    HEAD
    + """(float[2,3] y, float[2,3] z) {
  zeros = Constant <value = float[2,3] {0, 0, 0, 0, 0, 0}> ()
  y = Loop <body = first (int64 i, bool g1, float[2,3] a) => (bool o1, float[2,3] b) {
      o1 = Identity (g1)
      b = Add (a, x)
  }> (n, go, zeros)
  z = Loop <body = second (int64 j, bool g2, float[2,3] c) => (bool o2, float[2,3] d) {
      o2 = Identity (g2)
      d = Sub (c, x)
  }> (n, go, zeros)
}"""
)
JOINS = (
    HEAD
    + """(float[2,6] y, float[2,3] z) {
  outside = Exp (x)
  k = Constant <value = float {0.5}> ()
  z = Loop <body = round (int64 i, bool going, float[2,3] a) => (bool on, float[2,3] b) {
      on = Identity (going)
      both = Concat <axis = 1> (outside, a)
      turned = Transpose <perm = [1, 0]> (both)
      sums = MatMul (both, turned)
      mixed = MatMul (sums, a)
      tamed = Tanh (mixed)
      halved = Mul (outside, k)
      b = Add (tamed, halved)
  }> (n, go, x)
  y = Concat <axis = 1> (z, outside)
}"""
)


def built(text):
    model = text_model(text)
    optimized = optimize_model(import_model(model))
    assert any(loop_of(function) for function in optimized.module.functions.values())
    return model, build_model(optimized, use_shipped=False)


def inputs(n, go=True, limit=1e9):
    x = np.random.default_rng(0).standard_normal((2, 3)).astype("float32")
    return {"x": x, "n": np.int64(n), "go": np.array(go), "limit": np.float32(limit)}


def compare(model, library, given):
    given = {name: np.asarray(value) for name, value in given.items()}
    needed = {spec.name for spec in library.optimized.signature.inputs}
    found = library.run({name: value for name, value in given.items() if name in needed})
    for ours, theirs in zip(found, run_onnxruntime(model, given), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "text",
    [*thorough([STOPS]), SWAPS, *thorough([NESTED]), TWICE, JOINS],
    ids="stops swaps nested twice joins".split(),
)
def test_rounds(text):
    model, library = built(text)
    for n in (0, 1, 2, 3, 7, 16, 17):
        compare(model, library, inputs(n))
    compare(model, library, inputs(5, go=False))
    compare(model, library, inputs(3))  # the arena of the calls before


def test_the_body_decides():
    model, library = built(STOPS)
    for limit in (-100, 5, 20, 60, 300):
        compare(model, library, inputs(1000, limit=limit))
        compare(model, library, inputs(np.iinfo(np.int64).max, limit=limit))
    found = library.run(inputs(1000, limit=-100))
    assert found[2].tolist() == [1]


def test_checks_know_loops():
    _, library = built(STOPS)
    assert library.check().ok


def test_many_rounds_take_no_deep_stack(monkeypatch):
    """As many as four levels of calls hold, and some more."""
    monkeypatch.setattr(rounds, "_CALLS", 3)
    monkeypatch.setattr(rounds, "_LEVELS", 2)
    model, library = built(SWAPS)
    for n in (8, 9, 10, 27, 28, 100, 1001):
        compare(model, library, inputs(n))


def test_other_targets_refuse_loops():
    imported = import_model(text_model(STOPS))
    with pytest.raises(BuildError, match=r"has loops, which npu.*\n.*node 'Loop_y' \(Loop\)"):
        optimize_model(imported, "npu:mobile")
