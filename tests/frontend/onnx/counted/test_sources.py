"""Operators that give as many elements as values say, beside onnxruntime."""

import numpy as np
import pytest

from hetero_tvm.errors import UnsupportedOperatorError
from tests.frontend.onnx.counted.helpers import agrees

RNG = np.random.default_rng(5)


def sparse(*shape: int, kept: float = 0.4) -> np.ndarray:
    return (RNG.standard_normal(shape) * (RNG.random(shape) < kept)).astype("float32")


@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 1, 5), (1,)])
def test_non_zero(shape):
    dims, zero = ",".join(map(str, shape)), np.zeros(shape, "float32")
    agrees(
        f"(float[{dims}] x) => (int64[{len(shape)},N] y) {{ y = NonZero(x) }}",
        {"x": sparse(*shape)}, {"x": zero}, {"x": zero + np.float32("nan")},
    )  # fmt: skip


def test_non_zero_of_other_types():
    for kind, dtype in (("bool", "bool"), ("int32", "int32")):
        x = RNG.integers(0, 2, (3, 4)).astype(dtype)
        agrees(f"({kind}[3,4] x) => (int64[2,N] y) {{ y = NonZero(x) }}", {"x": x})


def test_compress():
    x, flags = sparse(4, 6, kept=1.0), RNG.random(4) < 0.5
    agrees(
        "(float[4,6] x, bool[4] c) => (float[N,6] y) { y = Compress<axis = 0>(x, c) }",
        {"x": x, "c": flags}, {"x": x, "c": np.zeros(4, bool)}, {"x": x, "c": np.ones(4, bool)},
    )  # fmt: skip
    agrees(
        "(float[4,6] x, bool[5] c) => (float[4,N] y, float[M] z) "
        "{ y = Compress<axis = -1>(x, c) z = Compress(x, c) }",
        {"x": x, "c": RNG.random(5) < 0.5},
    )


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("dtype", ["float", "int64"])
def test_unique(order, dtype):
    x = RNG.integers(-3, 3, (3, 5)).astype({"float": "float32"}.get(dtype, dtype))
    agrees(
        f"({dtype}[3,5] x) => ({dtype}[N] y, int64[N] first, int64[15] inverse, int64[N] often) "
        f"{{ y, first, inverse, often = Unique<sorted = {order}>(x) }}",
        {"x": x}, {"x": np.zeros_like(x)}, {"x": np.arange(15, dtype=x.dtype).reshape(3, 5)[::-1].copy()},
    )  # fmt: skip


def test_top_k_of_a_number_from_outside():
    given = [{"x": sparse(3, 9, kept=1.0), "k": np.array([k])} for k in (1, 4, 9)]
    agrees("(float[3,9] x, int64[1] k) => (float[3,N] y, int64[3,N] i) { y, i = TopK(x, k) }", *given)


def boxes(count: int) -> np.ndarray:
    corner = RNG.random((1, count, 2)).astype("float32")
    return np.concatenate([corner, corner + 0.3 * RNG.random((1, count, 2)).astype("float32")], axis=2)


def test_non_max_suppression():
    body = """(float[1,N,4] b, float[1,2,N] s) => (int64[M,3] y) {
      most = Constant<value = int64[1] {3}>() limit = Constant<value = float[1] {0.3}>()
      least = Constant<value = float[1] {0.4}>() y = NonMaxSuppression(b, s, most, limit, least)
    }""".replace("N,", "12,").replace(",N]", ",12]")
    scores = RNG.random((1, 2, 12)).astype("float32")
    agrees(body, {"b": boxes(12), "s": scores}, {"b": boxes(12), "s": scores * 0})


def test_a_form_that_is_not_covered_is_named():
    with pytest.raises(UnsupportedOperatorError, match="Unique.*compares whole slices"):
        agrees("(float[3,5] x) => (float[N,5] y) { y = Unique<axis = 0>(x) }")
