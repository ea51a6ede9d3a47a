"""Operator contracts: NumPy semantics against other formulas, JSON, cost, and the unscheduled kernels."""

import dataclasses

import numpy as np
import pytest
from scipy import signal, special

from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.ops.add_norm import AddNorm
from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.base import Operand, from_json
from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.normalization import Normalize
from hetero_tvm.ops.rope import Rope
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.relax_passes.rewriting.fused import contract_of
from hetero_tvm.schedules.task import task_key
from tests.ops.helpers import sample_inputs
from tests.schedules.cpu.running import compiled, exact, shapes_of

OPS = [
    Matmul((2, 3), 5, 4, ("bias", "gelu_erf", "residual")),
    Matmul((1,), 1, 1),
    *(Matmul((3,), 4, 5, (name,)) for name in ACTIVATIONS),
    Attention(2, 4, 5, 7, 3, 0.5, 2, mask=(2, 1, 5, 7)),
    Attention(1, 2, 6, 6, 4, 0.5, 1, packed=True, causal=True),
    Attention(2, 2, 6, 8, 4, 0.5, 1, mask=(1, 2, 1, 8), causal=True, value_dim=3, window=3, softcap=2.0),
    Attention(
        4, 2, 3, 3, 4, 0.5, 2, mask=(2, 1, 3, 3), tensors=((12, 2, 3, 4),), places=tuple(
            (0, 4 * i, 72, 12, 24) for i in range(3)
        ),
    ),
    BatchMatmul(
        (2, 3), 4, 5, 6, (2, 4, 3, 6), (0, 72, 6, 18, 1), (2, 3, 5, 6), (0, 90, 30, 1, 6), (0, 2, 1, 3)
    ),
    Rope((2, 3, 4, 7), 6, False, (1, 1, 4, 6), (2, 4, 30), (9, 120, 7, 30)),
    Rope((2, 4, 3, 6), 6, True, (2, 4, 1, 3), (2, 4, 3, 6), (0, 72, 18, 6)),
    Normalize((2, 3), 9, 1e-5),
    Normalize((4,), 9, 1e-5, centered=False, shifted=False),
    Normalize((2, 3), 5, 1e-5, trail=(2, 4)),
    Normalize((2, 4, 3), 5, 1e-5, False, False, source=(2, 3, 60), place=(20, 180, 5, 60)),
    AddNorm((2, 3), 9, (2, 3, 9), 1e-5),
    AddNorm((2, 3), 9, (3, 9), 1e-5, centered=False, shifted=False, kept=False),
    Softmax((2, 3), 7),
    Conv2d(2, 3, 7, 6, 4, (3, 2), (2, 1), (1, 0, 0, 2), (1, 2), epilogue=("bias", "relu", "residual")),
    Conv2d(1, 4, 5, 5, 4, (3, 3), padding=(1, 1, 1, 1), groups=4, epilogue=("relu6",)),
    Conv2d(1, 4, 5, 5, 6, (3, 3), groups=2),
]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.label)
def test_json_round_trip(op):
    again = from_json(op.to_json())
    assert again == op and hash(again) == hash(op) and type(again) is type(op)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.label)
def test_bytes_are_those_of_the_operands(op):
    arrays = sample_inputs(op)
    results = op.reference(*arrays)
    results = results if isinstance(results, tuple) else (results,)
    for result, operand in zip(results, op.outputs, strict=True):
        assert result.shape == operand.shape and result.dtype == np.float32
    if getattr(op, "place", None):  # x may be a part of its operand
        arrays[0] = results[0]
    assert op.nbytes == sum(a.nbytes for a in (*arrays, *results))
    assert op.flops > 0 and isinstance(op.flops, int)


def test_unscheduled_kernels_compute_the_reference():
    functions = [op.workload() for op in OPS]
    for op, function in zip(OPS, functions, strict=True):
        assert contract_of(function) == op
    runners = compiled((f, shapes_of(op)) for f, op in zip(functions, OPS, strict=True))
    for op, run in zip(OPS, runners, strict=True):
        arrays = sample_inputs(op)
        truth = exact(op, arrays)
        truth, result = ((x if len(op.outputs) > 1 else (x,)) for x in (truth, run(*arrays)))
        for one, wanted in zip(result, truth, strict=True):
            np.testing.assert_allclose(
                one, wanted, atol=2e-6 * max(1, np.abs(wanted).max()), err_msg=str(op)
            )


def test_keys_tell_operators_apart_and_are_stable():
    keys = [task_key(op.workload()) for op in OPS]
    assert len(set(keys)) == len(OPS)
    assert keys == [task_key(op.workload()) for op in OPS]
    assert task_key(Normalize((2, 3), 9, 1e-6).workload()) not in keys


def test_operand_bytes():
    assert Operand("a", (3, 5), "int64").nbytes == 120
    assert Operand("a", ()).nbytes == 4
    assert Operand("a", (1 << 20, 1 << 20)).nbytes == 4 << 40


def test_special_forms_of_attention_are_named():
    plain = Attention(4, 2, 6, 6, 4, 0.5, 2, packed=True, mask=(1, 1, 1, 6), causal=True)
    assert plain.special is None
    assert "period" in dataclasses.replace(plain, mask=(2, 1, 1, 6)).special
    assert dataclasses.replace(plain, window=3, softcap=1.0).special == "it has a window and a softcap"
    assert "strides" in dataclasses.replace(plain, tensors=((4, 6, 24),), places=((0,) * 5,) * 3).special


def test_flops():
    assert Matmul((2, 3), 5, 7, ("bias",)).flops == 2 * 6 * 5 * 7
    assert Conv2d(1, 4, 5, 5, 6, (3, 3), groups=2).flops == 2 * 6 * 9 * 2 * 9
    full = Attention(2, 3, 5, 5, 7, 1.0, 3)
    assert full.flops == 2 * 2 * (2 * 3 * 5 * 5 * 7)
    assert dataclasses.replace(full, causal=True).flops == full.flops // 2


def test_labels_name_what_differs():
    assert Matmul((2, 3), 5, 7, ("bias", "relu")).label == "matmul_6x7x5_bias_relu"
    assert Attention(1, 2, 6, 6, 4, 0.5, 2, packed=True, causal=True).label.endswith("_packed_causal")
    assert Conv2d(1, 4, 5, 5, 4, (3, 3), groups=4).label.startswith("depthwise")
    assert Normalize((4,), 9, 1e-5, centered=False).label.startswith("rms_norm")


def test_activations_against_scipy():
    x = np.linspace(-8, 8, 401)
    exact_forms = {
        "relu": np.where(x > 0, x, 0), "relu6": np.where(x > 0, np.where(x < 6, x, 6), 0),
        "gelu_erf": x * special.ndtr(x),
        "gelu_tanh": x * special.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)),
        "silu": x * special.expit(x), "quick_gelu": x * special.expit(1.702 * x),
            "sigmoid": special.expit(x), "tanh": np.tanh(x),
    }  # fmt: skip
    assert set(exact_forms) == set(ACTIVATIONS)
    for name, truth in exact_forms.items():
        np.testing.assert_allclose(ACTIVATIONS[name](x), truth, atol=1e-14)


def test_convolution_against_scipy():
    op = Conv2d(2, 3, 8, 9, 4, (3, 2), (2, 1), (1, 2, 0, 1))
    x, w = (a.astype("float64") for a in sample_inputs(op))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 0), (2, 1)))
    full = np.array(
        [[sum(signal.correlate2d(padded[n, c], w[o, c], "valid") for c in range(3)) for o in range(4)]
         for n in range(2)]
    )  # fmt: skip
    np.testing.assert_allclose(op.reference(x, w), full[:, :, ::2, :], atol=1e-12)
    assert op.output.shape == full[:, :, ::2, :].shape


def test_groups_are_independent_convolutions():
    op = Conv2d(1, 4, 6, 6, 6, (3, 3), groups=2)
    x, w = sample_inputs(op)
    one = Conv2d(1, 2, 6, 6, 3, (3, 3))
    halves = [one.reference(x[:, 2 * g : 2 * g + 2], w[3 * g : 3 * g + 3]) for g in range(2)]
    np.testing.assert_allclose(op.reference(x, w), np.concatenate(halves, 1), rtol=1e-5, atol=1e-6)


def test_attention_against_a_loop():
    op = Attention(2, 4, 3, 5, 6, 0.7, 2, mask=(2, 1, 1, 5), causal=True)
    q, key, v, mask = (a.astype("float64") for a in sample_inputs(op))
    result = op.reference(q, key, v, mask)
    for b in range(2):
        for h in range(4):
            own, shared = slice(6 * h, 6 * h + 6), slice(6 * (h // 2), 6 * (h // 2) + 6)
            for i in range(3):
                seen = i + 3
                scores = key[b, :seen, shared] @ q[b, i, own] * 0.7 + mask[b, 0, 0, :seen]
                np.testing.assert_allclose(
                    result[b, i, own], special.softmax(scores) @ v[b, :seen, shared], atol=1e-12
                )


def test_packed_attention_is_the_three_operands_side_by_side():
    op = Attention(2, 4, 5, 5, 3, 0.7, 2)
    q, key, v = sample_inputs(op)
    packed = dataclasses.replace(op, packed=True)
    assert [o.shape for o in packed.inputs] == [(2, 5, 24)]
    result = packed.reference(np.concatenate([q, key, v], -1))
    np.testing.assert_array_equal(result, op.reference(q, key, v))


def test_softmax_and_norms_against_scipy():
    x = np.random.default_rng(0).standard_normal((4, 9)) * 5
    np.testing.assert_allclose(Softmax((4,), 9).reference(x), special.softmax(x, -1), atol=1e-14)
    scale, shift = x[0] + 1, x[1]
    z = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3) * scale
    np.testing.assert_allclose(Normalize((4,), 9, 1e-3).reference(x, scale, shift), z + shift, atol=1e-12)
    rms = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3) * scale
    result = Normalize((4,), 9, 1e-3, centered=False, shifted=False).reference(x, scale)
    np.testing.assert_allclose(result, rms, atol=1e-12)
