"""Operators for residual streams and gates, written out: equal to ONNX Runtime's on the same file."""

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import contrib_model, run_onnxruntime

RANDOM = np.random.default_rng(0)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


X, FLAT, BLOCK = floats(2, 3, 4, 8), floats(2, 3, 32), floats(2, 3, 8)
ENGRAM = (X, floats(2, 3, 4, 8), BLOCK, floats(4, 8), floats(4, 8), floats(4, 8))
CASES = {
    "gated sum": ("GatedAdd", (BLOCK, floats(2, 3, 8), floats(2, 3, 1)), {}, 1),
    "reduced": ("HyperConnectionPreMix", (X, floats(2, 3, 4)), {"reduction_scale": 0.25}, 1),
    "reduced by columns": ("HyperConnectionPreMix", (X, floats(2, 3, 4, 8)), {}, 1),
    "flat and reduced": ("HyperConnectionPreMix", (FLAT, floats(2, 3, 32)), {"num_branches": 4}, 1),
    "flat, a gate each": ("HyperConnectionPreMix", (FLAT, floats(2, 3, 4, 1)), {"num_branches": 4}, 1),
    "injected": ("HyperConnectionPostMix", (X, BLOCK, floats(2, 3, 4)), {}, 1),
    "mixed": ("HyperConnectionPostMix", (X, BLOCK, floats(2, 3, 4, 8), floats(2, 3, 4, 4)), {}, 1),
    "flat and mixed": (
        "HyperConnectionPostMix", (FLAT, BLOCK, floats(2, 3, 4), floats(2, 3, 4, 4)), {"num_branches": 4}, 1
    ),
    "norm of streams": ("BranchwiseRMSNorm", (X, floats(4, 8)), {"epsilon": 1e-3}, 1),
    "flat norm": ("BranchwiseRMSNorm", (FLAT, floats(32)), {"num_branches": 4}, 1),
    "one scale": ("BranchwiseRMSNorm", (FLAT, floats(8)), {"num_branches": 4}, 1),
    "no scale": ("BranchwiseRMSNorm", (X,), {}, 1),
    "scaled silu": ("ScaledSiLU", (BLOCK,), {"alpha": 1.7}, 1),
    "scale as an input": ("ScaledSiLU", (BLOCK, np.float32(0.3)), {}, 1),
    "decay": ("LinearAttentionGate", (BLOCK, floats(8), -np.abs(floats(8))), {}, 1),
    "decay and rate": ("LinearAttentionGate", (BLOCK, floats(8), -np.abs(floats(8)), floats(2, 3, 8)), {}, 2),
    "engram": ("EngramGate", ENGRAM, {}, 2),
    "engram, gated only": ("EngramGate", ENGRAM[:5], {"epsilon": 1e-3}, 1),
}  # fmt: skip


@pytest.mark.parametrize("kind, values, attributes, results", CASES.values(), ids=CASES.keys())
def test_numbers(kind, values, attributes, results):
    model, inputs = contrib_model(kind, values, attributes, given=(0,), results=results)
    expected = run_onnxruntime(model, inputs)
    ours = run_onnxruntime(import_onnx(model).onnx_model, inputs)
    for have, want in zip(ours, expected, strict=True):
        assert have.shape == want.shape and have.dtype == want.dtype
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


def test_half_floats_are_summed_in_full():
    values = (FLAT.astype(np.float16), floats(2, 3, 4).astype(np.float16))
    model, inputs = contrib_model("HyperConnectionPreMix", values, {"num_branches": 4}, given=(0, 1))
    x, gates = (value.astype(np.float32) for value in values)
    expected = (x.reshape(2, 3, 4, 8) * gates[..., None]).sum(2).astype(np.float16)
    np.testing.assert_array_equal(run_onnxruntime(import_onnx(model).onnx_model, inputs)[0], expected)


def test_mixed_streams_compile():
    _, values, attributes, _ = CASES["flat and mixed"]
    model, inputs = contrib_model("HyperConnectionPostMix", values, attributes, given=(0, 1, 2, 3))
    built = build_model(optimize_model(import_model(model)), use_shipped=False)
    np.testing.assert_allclose(built.run(inputs)[0], run_onnxruntime(model, inputs)[0], rtol=1e-5, atol=1e-6)


def test_what_is_for_other_devices():
    model, _ = contrib_model("GatedAdd", (BLOCK, BLOCK, floats(2, 3, 5), floats(5, 1)), {}, given=(0,))
    with pytest.raises(UnsupportedOperatorError, match=r"node.*gate_weight"):
        import_onnx(model)
