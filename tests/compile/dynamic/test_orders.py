"""The greatest values of rows whose length is known at run time: shorter ones than a vector among them."""

import numpy as np
import pytest

from hetero_tvm import Span
from hetero_tvm.api import build_model, import_model, optimize_model
from tests.frontend.onnx.helpers import run_onnxruntime, text_model
from tests.selection import thorough


@pytest.mark.parametrize(("k", "low", "high"), [(1, 1, 31), *thorough([(5, 5, 700)])])
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


@pytest.mark.parametrize(("shape", "axis"), [(("b", "n"), 1), *thorough([(("n", 3), 0)])])
def test_open_rows_in_order(shape, axis):
    """As many runs of a row are merged as its length asks for."""
    dims = ", ".join(map(str, shape))
    model = text_model(
        f"g (float[{dims}] x) => (float[{dims}] v, int64[{dims}] i) "
        f"{{ place = Constant<value_ints = [{axis}]>()\n extents = Shape(x)\n k = Gather(extents, place)\n "
        f"v, i = TopK<axis = {axis}, largest = 0>(x, k) }}"
    )
    spans = {"b": Span(1, 3), "n": Span(1, 300)}
    shapes = {"x": tuple(spans.get(extent, extent) for extent in shape)}
    built = build_model(optimize_model(import_model(model, shapes=shapes)), use_shipped=False)
    rng = np.random.default_rng(0)
    for rows, n in ((1, 1), (3, 2), (2, 63), (1, 64), (3, 65), (2, 129), (3, 300)):
        extents = [{"b": rows, "n": n}.get(extent, extent) for extent in shape]
        given = {"x": rng.integers(-9, 10, extents).astype(np.float32)}
        for ours, theirs in zip(built.run(given), run_onnxruntime(model, given), strict=True):
            np.testing.assert_array_equal(ours, theirs)
