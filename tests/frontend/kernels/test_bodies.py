"""Bodies: expressions in NumPy's terms, without anything being run."""

import numpy as np
import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend.kernels.importer import import_description
from tests.frontend.kernels.helpers import draw, single

S = (4, 6)
CASES = {
    "where(x > 0, x, slope * x)": lambda x, y: np.where(x > 0, x, 0.125 * x),
    "x * sigmoid(y) + 2 * (x - y) ** 2": lambda x, y: x / (1 + np.exp(-y)) + 2 * (x - y) ** 2,
    "exp(x - max(x, axis=1, keepdims=True)) / sum(exp(x), axis=(1,), keepdims=True)": lambda x, y: (
        np.exp(x - x.max(1, keepdims=True)) / np.exp(x).sum(1, keepdims=True)
    ),
    "minimum(maximum(-x, y), 6) * rsqrt(mean(square(x)) + 1)": lambda x, y: (
        np.minimum(np.maximum(-x, y), 6) / np.sqrt((x * x).mean() + 1)
    ),
    "where((x > 0) & ~(y <= 1) | (x == y), sqrt(abs(x)), erf(y) * 0)": lambda x, y: np.where(
        (x > 0) & ~(y <= 1), np.sqrt(abs(x)), 0 * y
    ),
}


@pytest.mark.parametrize("body", CASES)
def test_bodies_mean_what_numpy_means(body):
    model = import_description(single("MyOwn", [S, S], S, body=body, slope=0.125))
    inputs = draw(model, -2, 2)
    expected = CASES[body](*(array.astype(np.float64) for array in inputs.values()))
    for double, tolerance in ((True, 1e-12), (False, 1e-5)):
        (found,) = model.original.run(inputs, double=double)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("x +", "is no expression"),
        ("__import__(x)", "there are abs"),
        ("x.__class__", "cannot be part of a body"),
        ("unknown * 2", "unknown is neither an input"),
        ("exp(x, y)", "exp takes 1"),
        ("sum(x, axis=z)", "the options of sum are numbers"),
        ("x[0]", "cannot be part of a body"),
        ("x < y < x", "cannot be part of a body"),
        ("'text'", "cannot be part of a body"),
        ("max(x, axis=1)", r"gives float32\[4\]"),
        ("(" * 300 + "x" + ")" * 300, "is no expression"),
        ("+".join(["x"] * 5000), "nested too deeply|is no expression"),
        ("", "is no expression"),
    ],
)
def test_what_is_no_body_is_refused_with_its_place(body, text):
    with pytest.raises(ModelError, match=text) as caught:
        import_description(single("MyOwn", [S, S], S, body=body))
    assert "$.op_desc[0]" in str(caught.value)
