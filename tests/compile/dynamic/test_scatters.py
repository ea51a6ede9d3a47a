"""Scatters of rows whose width is known at the call."""

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm import Span
from hetero_tvm.errors import LibraryError
from tests.frontend.onnx.helpers import text_model
from tests.selection import thorough

MODEL = """
scatters (float[6, 2, b] data, int64[n, %d] places, float[n, %s b] rows) => (float[6, 2, b] y)
{
    y = ScatterND<reduction="%s">(data, places, rows)
}
"""


@pytest.mark.parametrize(("depth", "reduction"), [(1, "none"), *thorough([(1, "add")]), (2, "add")])
def test_width_and_number_of_rows(depth, reduction):
    source = text_model(MODEL % (depth, "2," if depth == 1 else "", reduction), opset=18)
    shapes = {"b": (Span(2, 40),), "n": (Span(1, 9),)}
    built = hetero_tvm.build_model(hetero_tvm.optimize_model(hetero_tvm.import_model(source, shapes=shapes)))
    random = np.random.default_rng(0)
    for width, count in ((2, 1), (7, 4), (40, 9), (16, 6)):
        data = random.standard_normal((6, 2, width)).astype(np.float32)
        distinct = reduction == "none"  # which of two rows for one place stays is not said
        first = random.choice(6, min(count, 6), replace=False) if distinct else random.integers(-6, 6, count)
        places = np.stack([first, random.integers(0, 2, len(first))][:depth], 1)
        rows = random.standard_normal((len(first), *data.shape[depth:])).astype(np.float32)
        wanted = data.astype(np.float64)
        at = tuple(places.T)
        if reduction == "add":
            np.add.at(wanted, at, rows)
        else:
            wanted[at] = rows
        (found,) = built.run({"data": data, "places": places, "rows": rows})
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-5)  # sums of at most ten float32
    with pytest.raises(LibraryError, match="outside"):
        built.run({"data": data, "places": places + 6, "rows": rows})
