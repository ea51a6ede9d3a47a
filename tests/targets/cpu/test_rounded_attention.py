"""Attention in bfloat16: the precisions that take it, and what a whole model computes with it."""

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.schedules.cpu.integers.matrix_unit import has_matrix_unit
from hetero_tvm.targets.registry import parse_target
from tests.frontend.onnx.helpers import text_model

TARGET = parse_target("cpu")
multiplies = pytest.mark.skipif(not has_matrix_unit(TARGET.machine, "tdpbf16ps"), reason="no amx_bf16")

MODEL = """g (float[1,2,64,32] q, float[1,2,96,32] k, float[1,2,96,32] v) => (float[1,2,64,32] y) {
    s = Constant<value_float = 0.2>()
    turned = Transpose<perm = [0, 1, 3, 2]>(k)
    products = MatMul(q, turned)
    scores = Mul(products, s)
    weights = Softmax<axis = -1>(scores)
    y = MatMul(weights, v)
}"""


@pytest.mark.parametrize(
    "target, rounds",
    [
        (TARGET, False),
        (TARGET.with_precision("f16"), False),
        (TARGET.with_precision("bf16"), True),
        (TARGET.with_precision("int8"), True),
        (TARGET.rounding_attention(), True),
    ],
    ids=["f32", "f16", "bf16", "int8", "static"],
)
def test_precisions_that_round_attention(target, rounds):
    assert ("bf16_attention" in [rule.name for rule in target.fusions]) == rounds


@multiplies
@pytest.mark.parametrize("target", [TARGET.with_precision("bf16"), TARGET.rounding_attention()])
def test_a_model_with_rounded_attention(target):
    optimized = optimize_model(import_model(text_model(MODEL, opset=17)), target)
    assert [task.op.kind for task in optimized.tasks if task.op is not None].count("bf16_attention") == 1
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, n, 32), dtype="float32") for n in (64, 96, 96))
    (y,) = build_model(optimized, use_shipped=False).run({"q": q, "k": k, "v": v})
    scores = 0.2 * (q.astype(np.float64) @ k.swapaxes(2, 3))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(y, wanted, atol=2**-7 * np.abs(v).max())  # three roundings of 2**-9
