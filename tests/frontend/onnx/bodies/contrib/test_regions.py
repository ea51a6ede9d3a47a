"""ONNX Runtime's operators on matrices, crops and positions: its numbers, or the formula its CPU has not."""

import math

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import contrib_model, run_onnxruntime

RANDOM = np.random.default_rng(0)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def ours(kind, values, attributes, given=(0,)):
    model, inputs = contrib_model(kind, values, attributes, given=given)
    return run_onnxruntime(import_onnx(model).onnx_model, inputs)[0]


@pytest.mark.parametrize("shape", [(1, 1), (2, 3, 3), (2, 2, 5, 5)])
def test_inverses(shape):
    x = floats(*shape)
    x[..., 0, 0] = 0 if shape[-1] > 1 else 2  # which needs a pivot from another row
    np.testing.assert_allclose(
        ours("Inverse", (x,), {}), np.linalg.inv(x.astype(float)), rtol=1e-3, atol=1e-4
    )


def test_large_inverses_are_refused():
    with pytest.raises(UnsupportedOperatorError, match="of 33 rows; up to 32"):
        ours("Inverse", (floats(33, 33),), {})


CROPS = [
    ({}, (5, 4)),
    ({"mode": "nearest", "extrapolation_value": -2.5}, (3, 7)),
    ({"extrapolation_value": 9.0}, (1, 3)),
]


@pytest.mark.parametrize("attributes, size", CROPS)
def test_crops(attributes, size):
    """Boxes that are turned over, outside of the image, and of one point among them."""
    boxes = np.concatenate([RANDOM.uniform(-0.3, 1.3, (6, 4)), [[0, 0, 1, 1], [0.5, 0.2, 0.5, 0.2]]], 0)
    values = (floats(3, 2, 8, 9), boxes.astype(np.float32), RANDOM.integers(0, 3, 8).astype(np.int32))
    values = (*values, np.array(size, np.int32))
    model, inputs = contrib_model("CropAndResize", values, attributes, given=(0, 1, 2))
    (want,) = run_onnxruntime(model, inputs)
    (have,) = run_onnxruntime(import_onnx(model).onnx_model, inputs)
    np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_crops_run():
    boxes = RANDOM.uniform(-0.2, 1.2, (4, 4)).astype(np.float32)
    values = (floats(2, 3, 16, 16), boxes, np.array([0, 1, 1, 0], np.int32), np.array([6, 6], np.int32))
    model, inputs = contrib_model("CropAndResize", values, {}, given=(0, 1, 2))
    built = build_model(optimize_model(import_model(model)), use_shipped=False)
    np.testing.assert_allclose(built.run(inputs)[0], run_onnxruntime(model, inputs)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("both", [0, 1])
def test_biases_by_distance(both):
    torch = pytest.importorskip("torch")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    table, length = floats(16, 4), np.array([40])
    apart = torch.arange(40)[None, :] - torch.arange(40)[:, None]
    place = t5.T5Attention._relative_position_bucket(apart, bool(both), num_buckets=16, max_distance=20)
    values = (table, length, length)
    y = ours("RelativePositionBias", values, {"max_distance": 20, "is_bidirectional": both})
    np.testing.assert_array_equal(y[0], table[place.numpy()].transpose(2, 0, 1))


def test_gated_biases():
    query, bias, apart = floats(2, 5, 12), floats(12), floats(1, 3, 5, 5)
    weight, shift, share = floats(4, 8), floats(8), floats(1, 3, 1, 1)
    y = ours("GatedRelativePositionBias", (query, bias, apart, weight, shift, share), {"num_heads": 3})
    heads = (query + bias).reshape(2, 5, 3, 4).transpose(0, 2, 1, 3)
    gates = 1 / (1 + np.exp(-(heads @ weight + shift).reshape(2, 3, 5, 2, 4).sum(-1)))
    update, reset = gates[..., :1], gates[..., 1:]
    np.testing.assert_allclose(y, (update * (reset * share - 1) + 2) * apart, rtol=1e-4, atol=1e-5)


def test_products_of_complex_numbers():
    x, y = floats(3, 4, 2), floats(3, 4, 2)
    left, right = (v[..., 0] + 1j * v[..., 1] for v in (x, y))
    for kind, want in (("ComplexMul", left * right), ("ComplexMulConj", left * right.conj())):
        have = ours(kind, (x, y), {})
        np.testing.assert_allclose(have[..., 0] + 1j * have[..., 1], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("limit", [0.0, 0.7])
@pytest.mark.parametrize("apart", [True, False])
def test_gated_layers(limit, apart):
    gate, up = floats(2, 3, 6), floats(2, 3, 6)
    options = {"limit": limit, "activation_alpha": 1.7, "activation_beta": 1.0}
    values = (gate, up) if apart else (np.concatenate([gate, up], -1),)
    if limit:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    want = gate / (1 + np.exp(-1.7 * gate)) * (up + 1)
    np.testing.assert_allclose(ours("SwiGLU", values, options), want, rtol=1e-5, atol=1e-6)


def test_biases_with_dropout():
    x, bias, more = floats(2, 3), floats(3), floats(2, 3)
    np.testing.assert_allclose(ours("BiasDropout", (x, bias, more), {}), x + bias + more, rtol=1e-6)
    assert math.isclose(
        float(ours("BiasDropout", (x, bias), {})[0, 0]), float((x + bias)[0, 0]), rel_tol=1e-6
    )
