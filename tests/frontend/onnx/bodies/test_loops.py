"""Scan and Loop written out: equal to ONNX's own evaluator."""

import numpy as np
import onnx
import pytest

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import against_reference, operators, text_model

SCAN = """g (float[3] state, float[2,4,3] x, float[4,3] w) => (float[3] last, float[2,3,4] sums) {
  last, sums = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0],
    scan_output_axes = [2], scan_output_directions = [1],
    body = round (float[3] s, float[2,3] row, float[3] f) => (float[3] next, float[2,3] out) {
      scaled = Mul (row, f)
      total = ReduceSum <keepdims = 0> (scaled, axis)
      next = Add (s, total)
      out = Add (scaled, s)
    }> (state, x, w)
}"""


def test_scan_over_axes_in_both_directions():
    model = text_model(SCAN.replace("{\n  last", "{\n  axis = Constant <value = int64[1] {0}> ()\n  last", 1))
    random = np.random.default_rng(0)
    shapes = {"state": (3,), "x": (2, 4, 3), "w": (4, 3)}
    inputs = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    assert "Scan" not in operators(against_reference(model, inputs, judge="onnxruntime"))


DISTANCES = """g (float[{rows},{width}] x) => (float[{rows},{width}] same, {result} y) {{
  same, y = Scan <num_scan_inputs = 1, {axes}body = round (float[{rows},{width}] s, float[{width}] row)
    => (float[{rows},{width}] t, {one} out) {{
    {body}
  }}> (x, learnt)
}}"""

ROUNDS = {
    "squared": "t = Identity (s) d = Sub (s, row) axis = Constant <value = int64[1] {1}> () "
    "out = ReduceSumSquare <keepdims = 0> (d, axis)",
    "largest": "d = Sub (s, row) e = Abs (d) out = ReduceMax <keepdims = 0> (e, last) t = Identity (s)",
    "of all": "t = Identity (s) d = Mul (row, s) f = Greater (d, zero) g = Where (f, d, row) "
    "out = ReduceL2 <keepdims = 0> (g)",
    "of the learnt alone": "t = Identity (s) e = ReduceMean <keepdims = 1> (row) d = Sub (row, e) "
    "f = Mul (d, d) g = Add (f, s) out = ReduceSum <keepdims = 0> (g, last)",
}


@pytest.mark.parametrize("name", ROUNDS)
@pytest.mark.parametrize("axes", ["", "scan_output_axes = [-1], scan_output_directions = [1], "])
def test_rounds_that_know_nothing_of_each_other(name, axes):
    """Many more of them than are written out one by one."""
    rows, width, learnt = 3, 5, 1200
    each = name != "of all"
    result = [rows, learnt] if each and axes else [learnt, rows] if each else [learnt]
    text = DISTANCES.format(
        rows=rows,
        width=width,
        axes=axes,
        body=ROUNDS[name],
        result=f"float[{','.join(map(str, result))}]",
        one=f"float[{rows}]" if each else "float",
    )
    model = text_model(text, opset=18)
    random = np.random.default_rng(0)
    arrays = {
        "learnt": random.standard_normal((learnt, width), np.float32),
        "last": np.array([-1]),
        "zero": np.float32(0),
    }
    tensors = [onnx.numpy_helper.from_array(np.asarray(value), key) for key, value in arrays.items()]
    model.graph.initializer.extend(tensors)
    x = random.standard_normal((rows, width), np.float32)
    imported = against_reference(model, {"x": x}, judge="onnxruntime")
    assert not {"Scan", "Loop"} & set(operators(imported))


def test_many_rounds_that_do_stay_a_loop():
    text = """g (float[3] state, float[1500,3] x) => (float[3] last, float[1500,3] all) {
      last, all = Scan <num_scan_inputs = 1, body = round (float[3] s, float[3] row)
        => (float[3] t, float[3] out) { u = Mul (s, half) t = Add (u, row) out = Identity (t) }> (state, x)
    }"""
    model = text_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.5), "half"))
    random = np.random.default_rng(0)
    inputs = {"state": random.standard_normal(3, np.float32)}
    inputs["x"] = random.standard_normal((1500, 3), np.float32)
    against_reference(model, inputs, judge="onnxruntime")


KEPT = """g (float[300,200] w, float[1200,200] x) => (float[300,200] same, float[1200,300] y) {{
  same, y = Scan <num_scan_inputs = 1, body = round (float[300,200] s, float[200] row)
    => (float[300,200] t, float[300] out) {{
      t = Identity (s) m = Mul (s, row) e = Exp (m) {rest}
    }}> (w, x)
}}"""


@pytest.mark.parametrize(
    ("rest", "together"),
    [
        ("out = ReduceSum <keepdims = 0> (e, last)", True),
        ("f = Mul (e, m) z = ReduceSum <keepdims = 0> (f, last) out = Sqrt (z)", True),
        ("z = ReduceSum (e, last) d = Div (e, z) out = ReduceMax <axes = [-1], keepdims = 0> (d)", False),
    ],
)
def test_rounds_whose_tensors_would_fill_the_memory_come_one_after_another(rest, together):
    model = text_model(KEPT.format(rest=rest))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1]), "last"))
    found = set(operators(import_onnx(model)))
    assert bool({"Scan", "Loop"} & found) is not together


@pytest.mark.parametrize("next_state", ["Identity (s)", "Add (s, row)"])
@pytest.mark.parametrize("axis", [1, -2])
def test_results_of_undeclared_rank_have_their_rounds_where_the_scan_says(axis, next_state):
    text = f"""g (float[3] state, float[1500,3] x) => (float[3] last, float[2,1500,3] all) {{
      last, all = Scan <num_scan_inputs = 1, scan_output_axes = [{axis}],
        body = round (float[3] s, float[3] row) => (float[3] t, float out) {{
          t = {next_state} out = Mul (row, w) }}> (state, x)
    }}"""
    model = text_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32([[1, 2, 3], [4, 5, 6]]), "w"))
    scan = next(a.g for a in model.graph.node[0].attribute if a.name == "body")
    scan.output[1].type.tensor_type.ClearField("shape")
    random = np.random.default_rng(0)
    inputs = {"state": random.standard_normal(3, np.float32)}
    inputs["x"] = random.standard_normal((1500, 3), np.float32)
    against_reference(model, inputs, judge="onnxruntime", atol=1e-4)


LOOP = """g ({trip}bool go, float[2] x) => (float[2] y, float[4,2] all) {{
  {constant}y, all = Loop <body = round (int64 i, bool going, float[2] a)
   => (bool on, float[2] b, float[2] row) {{
    on = Identity (going)
    step = Cast <to = 1> (i)
    b = Add (a, step)
    row = Mul (a, x)
  }}> (n, go, x)
}}"""


def test_loop_of_constant_or_declared_rounds():
    x = np.array([1, 2], np.float32)
    constant = LOOP.format(trip="", constant="n = Constant <value = int64 {4}> ()\n  ")
    against_reference(text_model(constant), {"go": np.array(True), "x": x})
    declared = LOOP.format(trip="int64 n, ", constant="")
    against_reference(text_model(declared), {"n": np.int64(4), "go": np.array(True), "x": x})


@pytest.mark.parametrize("rounds, go", [(0, 1), (-2, 1), (3, 0)])
def test_loops_without_rounds_give_their_states(rounds, go):
    model = text_model(
        f"""g (float[2] x) => (float[2] y) <int64 n = {{{rounds}}}, bool go = {{{go}}}> {{
          y = Loop <body = round (int64 i, bool going, float[2] a) => (bool on, float[2] b) {{
            on = Identity (going)
            b = Add (a, a)
          }}> (n, go, x)
        }}"""
    )
    against_reference(model, {"x": np.array([1, 2], np.float32)}, judge="onnxruntime")


def test_branches_of_every_round_are_their_own():
    """Whichever branch a round takes, and in the same round twice, under the same names."""
    model = text_model(
        """g (float[4,2] x) => (float[2] y) {
          n = Constant <value = int64 {4}> ()
          go = Constant <value = bool {1}> ()
          zero = Constant <value = float[2] {1, 2}> ()
          y = Loop <body = round (int64 i, bool going, float[2] a) => (bool on, float[2] c) {
            two = Constant <value = int64 {2}> ()
            rest = Mod (i, two)
            odd = Cast <to = 9> (rest)
            b = If (odd) <
              then_branch = t () => (float[2] r) <float[2] f = {3, 5}> {
                p = Gather (x, i) q = Add (p, f) r = Mul (a, q) },
              else_branch = e () => (float[2] r) <float[2] f = {7, 9}> {
                p = Gather (x, i) q = Mul (p, f) r = Add (a, q) }>
            c = If (going) <
              then_branch = t () => (float[2] r) <float[2] f = {2, 4}> {
                p = Gather (x, i) q = Sub (p, f) r = Sub (b, q) },
              else_branch = e () => (float[2] r) { r = Identity (b) }>
            on = Identity (going)
          }> (n, go, zero)
        }"""
    )
    against_reference(model, {"x": np.arange(8, dtype=np.float32).reshape(4, 2) / 4})


def test_loop_that_stops_early_keeps_its_state():
    model = text_model(
        """g (float limit, float x) => (float y) {
          n = Constant <value = int64 {6}> ()
          go = Constant <value = bool {1}> ()
          y = Loop <body = round (int64 i, bool going, float a) => (bool on, float b) {
            b = Add (a, a)
            on = Less (b, limit)
          }> (n, go, x)
        }"""
    )
    for limit in (3, 20, 1000):
        against_reference(model, {"limit": np.float32(limit), "x": np.float32(1)})


@pytest.mark.parametrize(("limit", "go"), [(0, 1), (5, 0), (-3, 1)])
def test_no_rounds_give_the_state_and_rows_of_no_length(limit, go):
    model = text_model(
        f"""g (float[2,3] x, float[1,2,4] k) => (float[2,3] y, float[n,2,4] all, float[2,4] total) {{
          n = Constant <value = int64 {{{limit}}}> ()
          go = Constant <value = bool {{{go}}}> ()
          y, all = Loop <body = round (int64 i, bool going, float[2,3] a)
            => (bool on, float[2,3] b, float[2,4] row) {{
              on = Identity (going)
              b = Add (a, a)
              one = Constant <value = float[3,4] {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}> ()
              row = MatMul (a, one)
          }}> (n, go, x)
          more = Concat <axis = 0> (all, k)
          total = ReduceSum <keepdims = 0> (more, axis)
        }}""".replace("n = C", "axis = Constant <value = int64[1] {0}> ()\n          n = C", 1)
    )
    random = np.random.default_rng(0)
    inputs = {
        "x": random.standard_normal((2, 3), np.float32),
        "k": random.standard_normal((1, 2, 4), np.float32),
    }
    imported = against_reference(model, inputs, judge="onnxruntime")
    assert imported.signature.outputs[1].shape == (0, 2, 4)


def test_too_many_rounds_are_refused():
    model = text_model(LOOP.format(trip="", constant="n = Constant <value = int64 {5000}> ()\n  "))
    with pytest.raises(UnsupportedOperatorError, match="runs 5000 rounds"):
        import_onnx(model)


WHILE = """g (float[2] x) => (float[2] y, float[?,2] all) {{
  n = Constant <value = int32 {{{limit}}}> ()
  step = Constant <value = int32 {{3}}> ()
  first = Constant <value = int32 {{0}}> ()
  {trip}y, last, all = Loop <body = round (int64 i, bool going, float[2] a, int32 k)
   => (bool on, float[2] b, int32 next, float[2] row) {{
    next = Add (k, step)
    on = Less (next, n)
    number = Cast <to = 1> (k)
    b = Add (a, number)
    row = Mul (a, x)
  }}> ({bound}, , x, first)
}}"""


@pytest.mark.parametrize("limit, rounds", [(1, 1), (3, 1), (4, 2), (20, 7)])
def test_loop_that_ends_by_its_own_counter(limit: int, rounds: int):
    x = np.array([1, 2], np.float32)
    model = text_model(WHILE.format(limit=limit, trip="", bound=""))
    imported = against_reference(model, {"x": x}, judge="onnxruntime")
    assert "Loop" not in operators(imported)
    assert imported.signature.outputs[1].shape[0] == rounds


def test_the_smaller_of_counter_and_trip_count():
    x = np.array([1, 2], np.float32)
    for trip, rounds in ((2, 2), (2**40, 7)):
        bound = f"m = Constant <value = int64 {{{trip}}}> ()\n  "
        model = text_model(WHILE.format(limit=20, trip=bound, bound="m"))
        imported = against_reference(model, {"x": x}, judge="onnxruntime")
        assert imported.signature.outputs[1].shape[0] == rounds


def test_a_counter_that_never_ends_is_refused():
    model = text_model(WHILE.format(limit=10**6, trip="", bound=""))
    with pytest.raises(UnsupportedOperatorError, match="Loop"):
        import_onnx(model)
