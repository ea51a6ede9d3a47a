"""Attention over channels in a range of rows: its heads are as deep as there are rows."""

import numpy as np

from hetero_tvm import Span
from hetero_tvm.api import build_model, import_model, optimize_model
from tests.frontend.onnx.helpers import run_onnxruntime, text_model

CHANNELS = """g (float[1, n, 6] q, float[1, n, 6] k, float[1, n, 6] v) => (float[1, a, b] y) {
    qt = Transpose<perm = [0, 2, 1]>(q)
    vt = Transpose<perm = [0, 2, 1]>(v)
    s = MatMul(qt, k)
    w = Softmax<axis = -1>(s)
    y = MatMul(w, vt)
}"""


def test_heads_as_deep_as_there_are_rows():
    model = text_model(CHANNELS)
    shapes = {name: (1, Span(1, 19), 6) for name in "qkv"}
    built = build_model(optimize_model(import_model(model, shapes=shapes)), use_shipped=False)
    rng = np.random.default_rng(0)
    for rows in (1, 7, 19):
        given = {name: rng.standard_normal((1, rows, 6)).astype(np.float32) for name in "qkv"}
        for ours, theirs in zip(built.run(given), run_onnxruntime(model, given), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
