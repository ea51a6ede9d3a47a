"""Operators with an operand of no elements, and a result of some."""

import numpy as np
import pytest

from hetero_tvm.api import build_model, optimize_model
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import text_model

CASES = {
    "gemm": (
        "float[2,0] x, float[0,3] w, float[3] b",
        "y = Gemm <beta = 0.5> (x, w, b)",
        (2, 3),
        lambda x, w, b: np.broadcast_to(0.5 * b, (2, 3)),
    ),
    "convolution": (
        "float[1,0,4,4] x, float[2,0,3,3] w, float[2] b",
        "y = Conv (x, w, b)",
        (1, 2, 2, 2),
        lambda x, w, b: np.broadcast_to(b[:, None, None], (1, 2, 2, 2)),
    ),
    "scatter": (
        "float[3,4] x, int64[0,1] i, float[0,4] u",
        "y = ScatterND (x, i, u)",
        (3, 4),
        lambda x, i, u: x,
    ),
}


@pytest.mark.parametrize("inputs, body, shape, expected", CASES.values(), ids=CASES)
def test_what_has_nothing_to_do(inputs, body, shape, expected):
    dims = ",".join(map(str, shape))
    model = import_onnx(text_model(f"g ({inputs}) => (float[{dims}] y) {{ {body} }}"))
    random = np.random.default_rng(0)
    draw = {spec.name: random.random(spec.shape).astype(spec.dtype) for spec in model.signature.inputs}
    (y,) = build_model(optimize_model(model), use_shipped=False).run(draw)
    np.testing.assert_array_equal(y, expected(*draw.values()).astype(np.float32))
