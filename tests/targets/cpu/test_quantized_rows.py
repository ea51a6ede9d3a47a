"""Quantised convolutions of rows: kernels of 8-bit numbers, onnxruntime's steps."""

import numpy as np
import onnxruntime
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from tests.frontend.onnx.helpers import add_weight, text_model
from tests.selection import thorough

BODY = """g (float[2,12,40] x) => (float[2,16,a] y) {{
    s = Constant<value_float = 0.04>()
    t = Constant<value_float = 0.3>()
    xq = QuantizeLinear(x, s, z)
    xd = DequantizeLinear(xq, s, z)
    wd = DequantizeLinear<axis = 0>(w, ws)
    first = Conv<pads = [2, 2], dilations = [2]>(xd, wd, b)
    positive = Relu(first)
    fq = QuantizeLinear(positive, t, z)
    fd = DequantizeLinear(fq, t, z)
    dd = DequantizeLinear<axis = 0>(d, ds)
    deep = Conv<pads = [4, 4], group = 16>(fd, dd)
    dq = QuantizeLinear(deep, t, z)
    dx = DequantizeLinear(dq, t, z)
    sum = Add(dx, fd)
    sq = QuantizeLinear(sum, t, z)
    sd = DequantizeLinear(sq, t, z)
    vd = DequantizeLinear<axis = 0>(v, vs)
    last = Conv<strides = [2]>(sd, vd)
    yq = QuantizeLinear(last, t, z)
    y = DequantizeLinear(yq, t, z)
}}"""
FILTERS = {"w": (16, 12, 3), "d": (16, 1, 9), "v": (16, 16, 4)}


@pytest.mark.parametrize("dtype, zero", [("uint8", 128), *thorough([("int8", 3)])])
def test_rows_stay_integers(dtype, zero):
    model = text_model(BODY.format(), opset=17)
    rng = np.random.default_rng(zero)
    add_weight(model, "z", np.array(zero, dtype))
    add_weight(model, "b", rng.integers(-2000, 2000, 16).astype(np.float32) * np.float32(0.04 * 0.01))
    for name, shape in FILTERS.items():
        add_weight(model, name, rng.integers(-127, 128, shape).astype(np.int8))
        scales = rng.uniform(0.5, 1.5, 16) * (0.01 if name != "d" else 0.005)
        add_weight(model, f"{name}s", scales.astype(np.float32))
    optimized = optimize_model(import_model(model), "cpu")
    kinds = [task.op.kind for task in optimized.tasks if task.op is not None]
    assert kinds.count("quant_conv2d") == 3 and "conv2d" not in kinds
    x = rng.normal(size=(2, 12, 40)).astype(np.float32) * 2
    (y,) = build_model(optimized, use_shipped=False).run({"x": x})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    steps = np.rint(np.abs(y - session.run(None, {"x": x})[0]) / 0.3)
    assert steps.max() <= 1 and np.mean(steps > 0) < 0.01
