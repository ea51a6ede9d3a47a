"""Means of 8-bit images whose size is open: the count that they divide by is another one at each size."""

import numpy as np
import pytest
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions

import hetero_tvm
from hetero_tvm.api import build_model, import_model, optimize_model
from tests.frontend.onnx.helpers import text_model
from tests.selection import thorough

BODY = """
agraph (uint8[n, 6, h, w] x) => (uint8[n, 6, 1, 1] y)
   <float s = {0.05}, float t = {0.011}, uint8 z = {117}> {
   real = DequantizeLinear(x, s, z)
   mean = GlobalAveragePool(real)
   y = QuantizeLinear(mean, t, z)
}"""


@pytest.mark.parametrize("low, high", [(8, 64), *thorough([(32, 32)])], ids=["two axes", "one axis"])
def test_global_pools(low, high):
    model = text_model(BODY)
    spans = (2, 6, hetero_tvm.Span(8, 96), hetero_tvm.Span(low, high) if low < high else low)
    built = build_model(optimize_model(import_model(model, shapes={"x": spans})))
    options = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    session = InferenceSession(model.SerializeToString(), options)
    for height in (8, 31, 64, 96):
        shape = (2, 6, height, low if low == high else height // 2 + 4)
        x = np.random.default_rng(height).integers(0, 256, shape).astype("uint8")
        (wanted,) = session.run(None, {"x": x})
        # A mean that lies between two steps may be rounded to either.
        assert np.abs(built.run({"x": x})[0].astype(int) - wanted).max() <= 1
