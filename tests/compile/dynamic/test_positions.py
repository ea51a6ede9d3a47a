"""Images of open sizes that are read at open numbers of positions."""

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.api import build_model, import_model, optimize_model
from tests.frontend.onnx.helpers import run_onnxruntime, text_model


@pytest.mark.parametrize(
    ("mode", "padding", "aligned"),
    [
        ("bilinear", "zeros", 0),
        pytest.param("bilinear", "border", 1, marks=pytest.mark.thorough),
        pytest.param("nearest", "reflection", 0, marks=pytest.mark.thorough),
        pytest.param("bicubic", "zeros", 0, marks=pytest.mark.thorough),
    ],
)
def test_grid_sample(mode, padding, aligned):
    model = text_model(
        "g (float[2, 3, h, w] x, float[2, i, j, 2] p) => (float[2, 3, i, j] y) "
        f'{{ y = GridSample <mode = "{mode}", padding_mode = "{padding}", align_corners = {aligned}>'
        " (x, p) }"
    )
    ends = {"h": 12, "w": 40, "i": 9, "j": 19}
    h, w, i, j = (hetero_tvm.Span(1, end) for end in ends.values())
    lib = build_model(
        optimize_model(import_model(model, shapes={"x": (2, 3, h, w), "p": (2, i, j, 2)}), "cpu"),
        use_shipped=False,
    )
    rng = np.random.default_rng(0)
    for h, w, i, j in ((1, 1, 1, 1), tuple(ends.values()), (5, 17, 9, 1), (2, 40, 3, 4)):
        given = {
            "x": rng.standard_normal((2, 3, h, w), np.float32),
            "p": rng.uniform(-1.4, 1.4, (2, i, j, 2)).astype(np.float32),
        }
        # Positions in pixels are rounded: 40 pixels to 4e-6, times the difference of two pixels.
        np.testing.assert_allclose(lib.run(given)[0], run_onnxruntime(model, given)[0], atol=5e-5)
