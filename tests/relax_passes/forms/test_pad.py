"""Paddings by every mode, at fixed and at open sizes, beside NumPy."""

import numpy as np
import pytest
from onnx import numpy_helper

import hetero_tvm
from hetero_tvm.api import build_model, import_model, optimize_model
from tests.frontend.onnx.helpers import text_model
from tests.selection import named

MODES = ("constant", "reflect", "edge", "wrap")
WIDTHS = [(0, 0), (0, 2), (3, 1), (2, 0)]


def model(mode, dtype="float"):
    body = f'agraph ({dtype}[n, 3, h, w] x) => ({dtype}[a, 5, b, c] y) {{ y = Pad<mode="{mode}">(x, pads) }}'
    found = text_model(body, opset=19)
    pads = np.array(WIDTHS, "int64").T.reshape(-1)
    found.graph.initializer.append(numpy_helper.from_array(pads, "pads"))
    return found


@pytest.mark.parametrize("mode", named(MODES, {"constant", "reflect"}))
def test_borders_of_open_images(mode):
    sizes = [(1, 5, 4), (2, 4, 37), (3, 20, 64)]
    spans = (hetero_tvm.Span(1, 4), 3, hetero_tvm.Span(4, 40), hetero_tvm.Span(4, 90))
    built = build_model(optimize_model(import_model(model(mode), shapes={"x": spans})))
    for count, height, width in sizes:
        x = np.random.default_rng(width).standard_normal((count, 3, height, width)).astype("float32")
        y = built.run({"x": x})[0]
        np.testing.assert_array_equal(y, np.pad(x, WIDTHS, mode))


@pytest.mark.parametrize("dtype", ["float", pytest.param("int64", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("mode", MODES)
def test_borders_of_images(mode, dtype):
    x = np.random.default_rng(0).integers(-99, 99, (2, 3, 6, 33))
    x = x.astype({"float": "float32"}.get(dtype, dtype))
    built = build_model(optimize_model(import_model(model(mode, dtype), shapes={"x": x.shape})))
    np.testing.assert_array_equal(built.run({"x": x})[0], np.pad(x, WIDTHS, mode))
