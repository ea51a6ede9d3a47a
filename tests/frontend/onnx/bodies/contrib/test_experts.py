"""ONNX Runtime's mixtures of experts written out: its own numbers, by all experts and by rows' own ones."""

import numpy as np
import pytest

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import contrib_model, operators, run_onnxruntime

RANDOM = np.random.default_rng(0)
GPT_OSS = {
    "activation_type": "swiglu", "swiglu_fusion": 1, "normalize_routing_weights": 1, "swiglu_limit": 3.0,
    "activation_alpha": 1.702, "activation_beta": 1.0,
}  # fmt: skip
HIDDEN, INNER = 32, 16


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32) / 4


def mixture(rows, experts, fused=False, shape=None):
    outputs = INNER * (2 if fused else 1)
    first = (floats(experts, outputs, HIDDEN), floats(experts, outputs))
    return [floats(*(shape or (rows, HIDDEN))), 4 * floats(rows, experts), *first,
            floats(experts, HIDDEN, INNER), floats(experts, HIDDEN)]  # fmt: skip


def check(kind, values, attributes):
    model, inputs = contrib_model(kind, values, attributes, given=(0, 1))
    (expected,) = run_onnxruntime(model, inputs)
    imported = import_onnx(model)
    (got,) = run_onnxruntime(imported.onnx_model, inputs)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(expected).max())))
    return operators(imported)


@pytest.mark.parametrize("rows, experts", [(6, 4), (1, 8)])  # all experts, and copies of those of each row
@pytest.mark.parametrize("kind", ["relu", "gelu", "silu", "identity", "swiglu"])
def test_experts(kind, rows, experts):
    attributes = GPT_OSS if kind == "swiglu" else {"activation_type": kind}
    found = check("MoE", mixture(rows, experts, kind == "swiglu"), {"k": 2, **attributes})
    assert ("ScatterElements" in found) == (rows == 6)


def test_sequences_without_biases():
    values = mixture(6, 4, shape=(2, 3, HIDDEN))
    values[3] = values[5] = None
    check("MoE", values, {"k": 1, "activation_type": "silu", "normalize_routing_weights": 1})


def test_weights_of_quantised_experts_have_the_sum_1():
    packed = [RANDOM.integers(0, 256, (4, HIDDEN, HIDDEN // 2)).astype(np.uint8) for _ in range(2)]
    scales = [RANDOM.random((4, HIDDEN)).astype(np.float32) / 50 for _ in range(2)]
    values = [floats(5, HIDDEN), floats(5, 4), packed[0], scales[0], None, packed[1], scales[1]]
    check("QMoE", values, {"k": 2, "expert_weight_bits": 4, "activation_type": "relu"})


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits, block", [(4, 0), (4, 16), (8, 0), (2, 16)])
def test_quantised_experts(bits, block, zeros):
    def layer(outputs, width):
        blocks = (width // block,) if block else ()
        packed = RANDOM.integers(0, 256, (4, outputs, width * bits // 8)).astype(np.uint8)
        return [packed, RANDOM.random((4, outputs, *blocks)).astype(np.float32) / 50, floats(4, outputs)]

    def zero_points(outputs, width):
        shape = (4, outputs, -(-(width // block) * bits // 8)) if block else (4, outputs * bits // 8)
        return RANDOM.integers(0, 256, shape).astype(np.uint8)

    layers = [(2 * INNER, HIDDEN), (HIDDEN, INNER)]
    values = [floats(5, HIDDEN), floats(5, 4), *layer(*layers[0]), *layer(*layers[1]), None, None, None]
    values += [zero_points(*one) for one in layers] if zeros else []
    options = {"block_size": block} if block else {}
    check("QMoE", values, {"k": 2, "expert_weight_bits": bits, **options, **GPT_OSS})


def test_what_is_refused():
    for attributes in ({"use_sparse_mixer": 1}, {"activation_type": "swiglu"}):
        model, _ = contrib_model("MoE", mixture(6, 4), {"k": 2, **attributes}, given=(0, 1))
        with pytest.raises(UnsupportedOperatorError, match="Node 'node' \\(MoE\\) has"):
            import_onnx(model)
