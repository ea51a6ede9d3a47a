"""Shapes of counted tensors, and what is computed from them, beside onnxruntime."""

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import LibraryError, UnsupportedOperatorError
from tests.frontend.onnx.counted.helpers import agrees, model_of
from tests.frontend.onnx.counted.test_sources import sparse

FOUND = "i = NonZero(x) t = Transpose<perm = [1, 0]>(i)"


def check(results: str, body: str, empty: bool = True) -> None:
    x = sparse(4, 5)
    given = [{"x": x}, {"x": x * 0 + 1}, *([{"x": x * 0}] if empty else [])]
    agrees(f"(float[4,5] x) => ({results}) {{ {FOUND} {body} }}", *given)


def test_shape_and_size():
    check("int64[2] a, int64 b, int64[1] c", "a = Shape(t) b = Size(t) c = Shape<start = 1>(i)")


def test_tensors_of_a_counted_shape():
    check("int64[N,2] z", "s = Shape(t) z = ConstantOfShape<value = int64[1] {7}>(s)")
    check("int64[N] r", "s = Shape<end = 1>(t) n = Squeeze(s) zero = Constant<value = int64 {0}>() "
          "one = Constant<value = int64 {1}>() r = Range(zero, n, one)")  # fmt: skip
    check("int64[N,3] e", "s = Shape<end = 1>(t) three = Constant<value = int64[1] {3}>() "
          "both = Concat<axis = 0>(s, three) one = Constant<value = int64[1,1] {1}>() "
          "e = Expand(one, both)")  # fmt: skip


def test_extents_that_are_compared_before_a_tensor_expands_to_them():
    """As PyTorch's exporter writes ``expand``: an extent of -1 would be that of the tensor."""
    check("int64[N,2] e", "s = Shape(t) ones = Constant<value = int64[2] {1, 1}>() "
          "low = Constant<value = int64[2] {-1, -1}>() is = Equal(s, low) w = Where(is, ones, s) "
          "one = Constant<value = int64[1,1] {1}>() e = Expand(one, w)")  # fmt: skip


@pytest.mark.parametrize("target", ["-1,1,2", "1,-1,2", "-1", "-1,1,1,2", "0,-1"])
def test_reshape_by_numbers(target):
    rank = target.count(",") + 1
    check(
        f"int64[{','.join('?' * rank)}] y",
        f"k = Constant<value = int64[{rank}] {{{target}}}>() y = Reshape(t, k)",
        empty=target != "0,-1",  # onnxruntime divides by the first
    )


def test_reshape_that_brings_together_what_counts():
    check("int64[N] y", "k = Constant<value = int64[1] {-1}>() y = Reshape(i, k)")
    check("int64[M,2] z", "k = Constant<value = int64[1] {-1}>() y = Reshape(t, k) "
          "two = Constant<value = int64[2] {-1, 2}>() z = Reshape(y, two)")  # fmt: skip


def test_reshape_by_a_count():
    check("int64[N,1,2] y", "s = Shape<end = 1>(t) rest = Constant<value = int64[2] {1, 2}>() "
          "k = Concat<axis = 0>(s, rest) y = Reshape(t, k)")  # fmt: skip


def test_reshape_of_a_tensor_of_fixed_shape_to_as_many_elements_as_count():
    """As PyTorch's exporter writes ``positions[:, mask] = values``: all elements of the mask have to hold."""
    body = f"""(float[2,3] x, int64[6] v) => (int64[N,1] y) {{ {FOUND} s = Shape<end = 1>(t)
        one = Constant<value = int64[1] {{1}}>() k = Concat<axis = 0>(s, one) y = Reshape(v, k) }}"""
    full, values = np.ones((2, 3), np.float32), np.arange(6)
    agrees(body, {"x": full, "v": values})
    built = build_model(optimize_model(import_model(model_of(body))))
    with pytest.raises(LibraryError, match="the values of k must give the shapes"):
        built.run({"x": full - np.eye(2, 3, dtype=np.float32), "v": values})


def test_flatten():
    check("int64[N,2] y", "y = Flatten(t)")


def test_slices():
    check("int64[N,2] y", "a = Constant<value = int64[1] {0}>() b = Constant<value = int64[1] {3}>() "
          "y = Slice(t, a, b, a)")  # fmt: skip
    check("int64[N,2] y", "a = Constant<value = int64[1] {2}>() b = Constant<value = int64[1] {99}>() "
          "zero = Constant<value = int64[1] {0}>() y = Slice(t, a, b, zero)")  # fmt: skip
    check("int64[N,1] y", "a = Constant<value = int64[1] {0}>() one = Constant<value = int64[1] {1}>() "
          "y = Slice(t, a, one, one)")  # fmt: skip


def test_the_least_of_a_count_and_a_number():
    check(
        "float[N] v, int64[N] p",
        "s = Shape<end = 1>(t) three = Constant<value = int64[1] {3}>() k = Min(s, three) "
        "c = GatherND(x, t) v, p = TopK(c, k)",
    )


def test_a_cut_by_another_count():
    """As PyTorch's exporter writes ``x[mask] = values``: values up to the number of places."""
    other = "j = NonZero(b) u = Transpose<perm = [1, 0]>(j) s = Shape<end = 1>(u)"
    body = "zero = Constant<value = int64[1] {0}>() y = Slice(t, zero, s, zero) z = GatherND(x, y)"
    given = [{"x": sparse(4, 5), "b": np.arange(6) < n} for n in (0, 2, 6)]
    given += [{"x": sparse(4, 5) * 0 + scale, "b": np.arange(6) < 3} for scale in (0, 1)]
    given = [{name: v.astype(bool if name == "b" else "f4") for name, v in case.items()} for case in given]
    agrees(f"(float[4,5] x, bool[6] b) => (int64[N,2] y, float[N] z) {{ {FOUND} {other} {body} }}", *given)


def test_a_cut_from_the_end_is_refused():
    with pytest.raises(UnsupportedOperatorError, match="Slice.*from its end"):
        check("int64[N,2] y", "a = Constant<value = int64[1] {-2}>() b = Constant<value = int64[1] {99}>() "
              "zero = Constant<value = int64[1] {0}>() y = Slice(t, a, b, zero)")  # fmt: skip
