"""Ranges begin where a model is what it is at large sizes: below, kernels would read what is not theirs."""

import numpy as np
import pytest

from hetero_tvm import Span
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import InputError, ShapeError
from tests.frontend.onnx.helpers import add_weight, run_onnxruntime, text_model

ROWS = "g (float[1, n, 4] x) => (float[1, m, 4] y)"
SPECIAL = {
    "reflection": ('<int64[6] p = {0, 3, 0, 0, 3, 0}> { y = Pad<mode = "reflect">(x, p) }', 4),
    "slice": ("<int64[1] b = {1}, int64[1] e = {4}> { y = Slice(x, b, e, b) }", 4),
    "slice from the end": (
        "<int64[1] b = {-3}, int64[1] e = {99}, int64[1] a = {1}> { y = Slice(x, b, e, a) }",
        3,
    ),
    "index": ("<int64[1] i = {2}> { y = Gather<axis = 1>(x, i) }", 3),
    "update": (
        "<int64[1, 2] i = {0, 2}, float[1, 4] u = {1, 2, 3, 4}> { y = ScatterND(x, i, u) }",
        3,
    ),
    "hidden": (
        "<int64[1] b = {-3}, int64[1] e = {99}, int64[1] a = {1}>"
        "{ s = Slice(x, b, e, a) r = ReduceMax<axes = [1]>(s) y = Add(r, x) }",
        3,
    ),
    "window": (
        "<float[4, 4, 3] w> { t = Transpose<perm = [0, 2, 1]>(x) c = Conv(t, w) "
        "y = Transpose<perm = [0, 2, 1]>(c) }",
        3,
    ),
}
BRANCHES = """
g (float[n, 3] x) => (float[n, 3] y) <int64 k = {8}, int64[1] e = {1}> {
  s = Shape<end = 1>(x)
  n = ReduceMax<keepdims = 0>(s)
  c = Greater(n, k)
  y = If (c) <then_branch = a () => (float[n, 3] p) { p = Tanh(x) },
              else_branch = b () => (float[n, 3] q) { q = Relu(x) }>
}"""
CHOICE = """
g (float[n, 3] x) => (float[n, 3] y) <int64 k = {8}> {
  s = Shape<end = 1>(x)
  c = Greater(s, k)
  z = Tanh(x)
  y = Where(c, z, x)
}"""
FACTOR = """
g (float[n, 3] x) => (float[n, 3] y) <int64 k = {9}> {
  s = Shape<end = 1>(x)
  c = Min(s, k)
  f = Cast<to = 1>(c)
  y = Mul(f, x)
}"""


@pytest.mark.parametrize("text", [BRANCHES, CHOICE, FACTOR], ids=["branch", "choice", "factor"])
def test_values_that_sizes_decide_are_those_of_all_sizes(text):
    source = text_model(text)
    with pytest.raises(ShapeError, match=r"n = 9\.\.23$"):
        optimize_model(import_model(source, shapes={"x": (Span(1, 23), 3)}))
    optimize_model(import_model(source, shapes={"x": (Span(9, 23), 3)}))


def test_a_branch_that_changes_among_large_sizes_names_the_node():
    source = text_model(BRANCHES.replace("{8}", "{20}"))
    source.graph.node[3].name = "/guard"
    with pytest.raises(ShapeError, match="'/guard'.*another branch at n = "):
        import_model(source, shapes={"x": (Span(1, 23), 3)})


def test_tables_of_places_that_are_short_at_small_sizes():
    """Behind one, another constant is the next that has few elements."""
    source = text_model(
        "g (float[n, 3] x) => (float[n, 3] y) <int64 z = {0}, int64 one = {1}, float k = {3}> {"
        " s = Shape<end = 1>(x) m = Squeeze(s) r = Range(z, m, one) f = Cast<to = 1>(r)"
        " u = Unsqueeze(f, c) p = Add(x, u) y = Mul(p, k) } "
    )
    add_weight(source, "c", np.array([1]))
    optimize_model(import_model(source, shapes={"x": (Span(1, 200), 3)}))


def model_of(body):
    body = body.replace("float[4, 4, 3] w", f"float[4, 4, 3] w = {{{', '.join(map(str, range(48)))}}}")
    return text_model(f"{ROWS} {body}")


@pytest.mark.parametrize("body, least", SPECIAL.values(), ids=SPECIAL)
def test_special_sizes_are_refused(body, least):
    source = model_of(body)
    with pytest.raises(ShapeError, match=rf"n = {least}\.\.13$"):
        optimize_model(import_model(source, shapes={"x": (1, Span(1, 13), 4)}))
    optimize_model(import_model(source, shapes={"x": (1, Span(least, 13), 4)}))


def test_ranges_that_nobody_gave_begin_there():
    body, least = SPECIAL["reflection"]
    source = model_of(body)
    built = build_model(optimize_model(import_model(source, shapes={"x": (1, Span(), 4)})), use_shipped=False)
    given = {"x": np.random.default_rng(0).standard_normal((1, least, 4)).astype(np.float32)}
    np.testing.assert_allclose(built.run(given)[0], run_onnxruntime(source, given)[0], rtol=1e-6)
    with pytest.raises(InputError, match=f"{least}"):
        built.run({"x": given["x"][:, :-1]})


def test_least_sizes_that_are_like_the_others():
    """A reshape that does nothing at 1, and a window that is padded."""
    pooled = "m = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x)"
    source = text_model(f"g (float[n, 3, h, 5] x) => (float[n, k] y) {{ {pooled} y = Flatten(m) }}")
    shapes = {"x": (Span(1, 8), 3, Span(1, 9), 5)}
    optimized = optimize_model(import_model(source, shapes=shapes))
    assert [s.low for s in optimized.lengths.symbols] == [1, 1]


IF = (
    "y = If (c) <then_branch = t () => (float[n, 3] p) { p = Tanh(x) },"
    " else_branch = e () => (float[n, 3] q) { q = Exp(x) }>"
)
WHERE = "u = Tanh(x) v = Exp(x) y = Where(c, u, v)"
FACTOR_OF = "f = Cast<to = 1>(c) y = Mul(x, f)"
NARROW = {
    "branch": ("int64 a = {777}", f"c = Equal(m, a) {IF}", 777),
    "choice": ("int64 a = {777}", f"c = Equal(m, a) {WHERE}", 777),
    "factor": ("int64 a = {777}", f"c = Equal(m, a) {FACTOR_OF}", 777),
    "slice": (
        "int64 a = {777}, int64[1] z = {0}, int64[1] o = {1}",
        "c = Equal(m, a) f = Cast<to = 7>(c) b = Unsqueeze(f, z) e = Add(b, o)"
        " p = Slice(x, b, e, o) y = Add(x, p)",
        777,
    ),
    "window": (
        "int64 a = {40}, int64 b = {42}",
        f"d = Greater(m, a) e = Less(m, b) c = And(d, e) {WHERE}",
        41,
    ),
    "remainder": ("int64 a = {997}, int64 b = {13}", f"d = Mod(m, a) c = Equal(d, b) {WHERE}", 13),
    "quotient": ("int64 a = {97}, int64 b = {3}", f"d = Div(m, a) c = Equal(d, b) {WHERE}", 291),
    "square": ("int64 b = {1369}", f"d = Mul(m, m) c = Equal(d, b) {WHERE}", 37),
    "table": (
        "int64[8] t = {4, 4, 4, 9, 4, 4, 4, 4}, int64 a = {130}",
        "d = Div(m, a) v = Gather(t, d) f = Cast<to = 1>(v) y = Mul(x, f)",
        390,
    ),
    "clip": (
        "int64 a = {-1}, int64 h = {0}, int64 q = {200}",
        "d = Sub(m, q) e = Abs(d) k = Neg(e) v = Clip(k, a, h) f = Cast<to = 1>(v) y = Mul(x, f)",
        200,
    ),
    "other rule": (
        "int64 a = {50}, int64 o = {1}",
        "c = Equal(m, a) p = Add(m, o) v = Where(c, p, m) f = Cast<to = 1>(v) y = Mul(x, f)",
        50,
    ),
}


@pytest.mark.parametrize("constants, body, size", NARROW.values(), ids=NARROW)
def test_sizes_that_decide_otherwise_are_found_in_any_window(constants, body, size):
    ends = "g (float[n, 3] x) => (float[n, 3] y)"
    source = text_model(f"{ends} <{constants}> {{ s = Shape<end = 1>(x) m = Squeeze(s) {body} }}")
    source.graph.node[-1].name = "/guard"
    with pytest.raises(ShapeError, match=rf"something else at n = {size}\D") as refused:
        optimize_model(import_model(source, shapes={"x": (Span(1, 1000), 3)}))
    assert ("'/guard' (If) takes its other branch" in str(refused.value)) == (IF in body)
    if body.startswith("c = Equal(m, a)"):
        optimize_model(import_model(source, shapes={"x": (Span(size + 1, 1000), 3)}))


@pytest.mark.parametrize(
    "body",
    [
        "d = Sub(a, b) c = Equal(d, k)",
        "d = Mul(a, b) c = Equal(d, k)",
        "d = Add(a, b) c = Equal(d, k)",
        "d = Equal(a, k) e = Equal(b, k) c = And(d, e)",
    ],
    ids=["difference", "product", "sum", "one point"],
)
def test_sizes_that_are_compared_with_each_other(body):
    """Among four million pairs."""
    source = text_model(
        "g (float[n, 3] x, float[m, 3] z) => (float[n, 3] y, float[m, 3] w) <int64 k = {1230}> {"
        " s = Shape<end = 1>(x) a = Squeeze(s) t = Shape<end = 1>(z) b = Squeeze(t) w = Relu(z)"
        f" {body} {WHERE} }}"
    )
    with pytest.raises(ShapeError, match="something else at n = "):
        optimize_model(import_model(source, shapes={"x": (Span(1, 2000), 3), "z": (Span(1, 2000), 3)}))


def test_comparisons_that_come_out_alike_leave_the_range_as_it_is():
    """The guard of an Expand, as PyTorch's exporter writes it."""
    source = text_model(
        "g (float[n, 3] x) => (float[n, 3] y) <int64[1] k = {3}, int64[1] m = {-1}, int64[2] o = {1, 1},"
        " int64[1] z = {0}, int64[1] e = {1}> { s = Shape<end = 1>(x) a = Concat<axis = 0>(s, k)"
        " c = Equal(a, m) v = Where(c, o, a) f = Slice(x, z, e) r = Expand(f, v) y = Add(x, r) }"
    )
    optimized = optimize_model(import_model(source, shapes={"x": (Span(1, 300), 3)}))
    assert [s.low for s in optimized.lengths.symbols] == [1]


@pytest.mark.parametrize(
    "text",
    [
        "g (float[n,6] x, int64[m,3] i) => (float[m,3] y) { y = GatherElements<axis=1>(x, i) }",
        "g (float[n,6] x, int64[m,3] i) => (float[n,6] y) <float u = {1}>"
        "{ s = Shape(i) v = Expand(u, s) y = ScatterElements<axis=1>(x, i, v) }",
    ],
    ids=["read", "written"],
)
def test_rows_of_indices_lie_in_those_of_the_data(text):
    """Neither range alone tells: more rows of indices than of data would be foreign memory."""
    source = text_model(text, opset=18)
    with pytest.raises(ShapeError, match="n = 1, m = 8") as caught:
        optimize_model(import_model(source, shapes={"x": (Span(1, 16), 6), "i": (Span(1, 8), 3)}))
    assert "more rows than the data" in str(caught.value) or "a slice is longer" in str(caught.value)
