"""Boxes of images whose width is known at run time only, and narrower than a vector at times."""

import numpy as np

from hetero_tvm import Span
from hetero_tvm.api import build_model, import_model, optimize_model
from tests.frontend.onnx.helpers import run_onnxruntime, text_model

POOLED = """g (float[1, 2, n, n] x, float[3, 4] r) => (float[3, 2, 3, 2] y) <int64[3] i = {0, 0, 0}> {
    y = RoiAlign<output_height = 3, output_width = 2, sampling_ratio = 2>(x, r, i)
}"""


def test_boxes_of_open_images():
    model = text_model(POOLED)
    shapes = {"x": (1, 2, Span(1, 40), Span(1, 40))}
    built = build_model(optimize_model(import_model(model, shapes=shapes)), use_shipped=False)
    rng = np.random.default_rng(0)
    for n in (1, 2, 7, 15, 16, 40):
        corners = np.sort(rng.uniform(0, n, (3, 2, 2)), axis=1).reshape(3, 4)
        given = {"x": rng.standard_normal((1, 2, n, n)).astype(np.float32), "r": corners.astype(np.float32)}
        ours, theirs = built.run(given)[0], run_onnxruntime(model, given)[0]
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
