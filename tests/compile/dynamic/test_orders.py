"""The greatest values of rows whose length is known at run time: shorter ones than a vector among them."""

import numpy as np
import pytest

from hetero_tvm import Span
from hetero_tvm.api import build_model, import_model, optimize_model
from tests.frontend.onnx.helpers import run_onnxruntime, text_model


@pytest.mark.parametrize(("k", "low", "high"), [(1, 1, 31), (5, 5, 700)])
def test_greatest_of_open_rows(k, low, high):
    model = text_model(
        f"g (float[b, n] x) => (float[b, {k}] v, int64[b, {k}] i)"
        f"<int64[1] k = {{{k}}}> {{ v, i = TopK<axis = -1>(x, k) }}"
    )
    shapes = {"x": (Span(1, 3), Span(low, high))}
    built = build_model(optimize_model(import_model(model, shapes=shapes)), use_shipped=False)
    rng = np.random.default_rng(0)
    for rows, n in ((1, low), (3, low), (2, 15), (3, 16), (1, 29), (3, high)):
        given = {"x": rng.integers(-9, 10, (rows, n)).astype(np.float32)}
        for ours, theirs in zip(built.run(given), run_onnxruntime(model, given), strict=True):
            np.testing.assert_array_equal(ours, theirs)
