"""Maxima and minima of NaN and infinities, as ONNX Runtime has them."""

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from tests.frontend.onnx.helpers import text_model
from tests.selection import thorough

COUNT = 40  # vectors and a rest
SPECIAL = np.tile(np.array([np.nan, -np.inf, np.inf, -1, 2], np.float32), COUNT // 5)
ONES = ", ".join(["1"] * COUNT)


def same_as_onnxruntime(text: str, **inputs: np.ndarray) -> None:
    import onnxruntime

    source = text_model(text)
    built = build_model(optimize_model(import_model(source)), use_shipped=False)
    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    for ours, theirs in zip(built.run(inputs), session.run(None, inputs), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "operator",
    [
        *("Relu(x)", "Clip(x, low, high)", "Max(x, w)", "Min(x, w)", "Max(x, low)", "Min(x, high)"),
        *("Max(x, z)", "Max(x, w, z)"),
        *thorough(["Max(w, x)", "Min(w, x)", "Max(low, x)", "Max(z, x)", "Min(z, x)"]),
    ],
)
def test_nan_stays_nan(operator):
    second = f", float[{COUNT}] z" if "z" in operator else ""
    text = f"g (float[{COUNT}] x{second}) => (float[{COUNT}] y) "
    text += f"<float[{COUNT}] w = {{{ONES}}}, float low = {{-1.0}}, float high = {{1.0}}> "
    text += f"{{ y = {operator} }}"
    same_as_onnxruntime(text, x=SPECIAL, **({"z": np.ones(COUNT, np.float32)} if second else {}))


@pytest.mark.parametrize("function", ["Selu", "Exp", "Softplus"])
@pytest.mark.parametrize("operator", ["Min(t, z)", "Max(z, t)"])
def test_nan_stays_behind_exponentials(operator, function):
    """They are taken by their bits, as in our kernels of softmax, which keep NaN by their sums."""
    text = f"g (float[{COUNT}] x, float[{COUNT}] z) => (float[{COUNT}] y) "
    text += f"{{ t = {function}(x) t2 = Identity(t) y = {operator.replace('t', 't2')} }}"
    source, ones = text_model(text), np.ones(COUNT, np.float32)
    (y,) = build_model(optimize_model(import_model(source)), use_shipped=False).run({"x": SPECIAL, "z": ones})
    assert np.isnan(y[np.isnan(SPECIAL)]).all()


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
def test_reductions_begin_at_infinity(operator):
    x = np.array([[-np.inf] * 3, [1, 2, 3], [np.inf] * 3], np.float32)
    same_as_onnxruntime(
        f"g (float[3,3] x) => (float[3] y) {{ y = {operator}<axes = [1], keepdims = 0>(x) }}", x=x
    )


def test_pools_begin_at_infinity():
    x = np.full((1, 1, 4, 4), -np.inf, np.float32)
    text = "{ y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x) }"
    same_as_onnxruntime(f"g (float[1,1,4,4] x) => (float[1,1,2,2] y) {text}", x=x)
