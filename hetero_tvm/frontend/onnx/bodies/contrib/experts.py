"""ONNX Runtime's mixtures of experts, MoE and QMoE, written out in plain ONNX.

Each row goes through the ``k`` experts with the largest logits.  Where rows are few, each takes copies of its
own experts' weights; else all experts compute all rows.  Quantised weights become floats.
Semantics: ONNX Runtime, docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.bodies.contrib.layers import fast_gelu
from hetero_tvm.frontend.onnx.graph.body import Body, as_text
from hetero_tvm.frontend.onnx.graph.packed import unpacked

_COPIED = 3
"""Times that memory is crossed where each row takes its own copy of its weights."""
_END = np.iinfo(np.int64).max


@dataclass(frozen=True)
class _Layer:
    """Weights [experts, out, in] and biases [experts, out] ("" for none) of one layer of all experts."""

    weight: str
    bias: str

    def half(self, b: Body, start: int, end: int, step: int) -> _Layer:
        """Some of the layer's outputs: of those of a gate and what it gates, which are stored in one."""
        ends = [b.const([n], "int64") for n in (start, end, 1, step)]
        return _Layer(*(b.op("Slice", name, *ends) if name else "" for name in (self.weight, self.bias)))


def experts(b: Body) -> None:
    """MoE: input, logits, then weight and bias of three layers."""
    layers = [_Layer(b.input(n), b.input(n + 1)) if b.input(n) else None for n in (2, 4, 6)]
    _mixture(b, layers)


def quantized_experts(b: Body) -> None:
    """QMoE: input, logits, then weight, scale and bias of three layers, and their zero points."""
    kind = as_text(b.attributes.get("quant_type", "int"))
    if kind != "int":
        raise _refusal(b, f"quant_type={kind!r}", "Quantise it to integers of 2, 4 or 8 bits.")
    if int(b.attributes.get("weights_prepacked", 0)) == 1:
        raise _refusal(b, "weights in the order of a device's kernels (weights_prepacked=1)", _SOURCE)
    if b.input(14):
        raise _refusal(b, f"weights of its router beside the logits ({b.input(14)!r})", _SOURCE)
    layers = [
        _Layer(_dequantized(b, 2 + 3 * n, 11 + n, n + 1), b.input(4 + 3 * n)) if b.input(2 + 3 * n) else None
        for n in range(3)
    ]
    # ONNX Runtime's kernel for CPUs divides by the sum of the chosen, whatever the attribute says.
    _mixture(b, layers, normalised=True)


_SOURCE = "Take the file that this one was made from."


def _mixture(b: Body, layers: list[_Layer | None], normalised: bool = False) -> None:
    """The layers of each row's experts, weighted by the router, with the sum 1 if ``normalised``."""
    if int(b.attributes.get("use_sparse_mixer", 0)):
        raise _refusal(b, "use_sparse_mixer=1", _SOURCE)
    first, second, third = layers
    if first is None or second is None:
        raise _refusal(b, "no weights of its first two layers", _SOURCE)
    fusion = int(b.attributes.get("swiglu_fusion", 0))
    if fusion:
        stored = b.constants.get(first.weight)
        rows = (b.shape(first.weight) if stored is None else stored.shape) or (None, None)
        if fusion == 2 and rows[1] is None:
            raise _refusal(b, "weights of unknown size", _SOURCE)
        middle = (rows[1] or 0) // 2
        ends = ((0, middle, 1), (middle, _END, 1)) if fusion == 2 else ((0, _END, 2), (1, _END, 2))
        first, third = (first.half(b, *one) for one in ends)
    logits, top = b.input(1), b.const([int(b.attributes.get("k", 1))], "int64")
    normalised = normalised or bool(int(b.attributes.get("normalize_routing_weights", 0)))
    share = b.op("TopK", logits if normalised else b.op("Softmax", logits, axis=-1), top, axis=-1)
    chosen = f"{share}_places"
    b.nodes[-1].output.append(chosen)
    if normalised:
        share = b.op("Softmax", share, axis=-1)
    x = b.op("Reshape", b.input(0), b.op("Concat", b.const([-1], "int64"), b.extent(b.input(0), -1), axis=0))
    through = _own(b, x, chosen) if _are_few(b) else _every(b, x)
    hidden = through(first, x="")
    if third is None:
        hidden = _activated(b, hidden)
    else:
        hidden = _gated(b, hidden, through(third, x=""))
    y = through(second, x=hidden)
    if _are_few(b):  # [rows, k, 1, out]
        weights, axis = b.op("Unsqueeze", share, b.const([2, 3], "int64")), 1
        y = b.op("Squeeze", b.op("Mul", y, weights), b.const([2], "int64"))
    else:  # [experts, rows, out]
        zeros = b.op("ConstantOfShape", b.op("Shape", logits))
        spread = b.op("ScatterElements", zeros, chosen, share, axis=1)
        weights, axis = b.op("Unsqueeze", b.op("Transpose", spread, perm=[1, 0]), b.const([2], "int64")), 0
        y = b.op("Mul", y, weights)
    b.end(0, b.op("Reshape", b.reduce("ReduceSum", y, [axis], 0, 13), b.op("Shape", b.input(0))))


def _are_few(b: Body) -> bool:
    """Whether copies of the chosen experts are less than what all experts read."""
    logits = b.shape(b.input(1))
    rows, count = logits if logits is not None and len(logits) == 2 else (None, None)
    return (
        isinstance(rows, int)
        and isinstance(count, int)
        and _COPIED * rows * int(b.attributes.get("k", 1)) < count
    )


def _every(b: Body, rows: str) -> Callable[..., str]:
    """Layer of all experts: [experts, rows, in] (or the rows themselves) -> [experts, rows, out]."""

    def through(layer: _Layer, x: str) -> str:
        y = b.op("MatMul", x or rows, b.op("Transpose", layer.weight, perm=[0, 2, 1]))
        if not layer.bias:
            return y
        return b.op("Add", y, b.op("Unsqueeze", layer.bias, b.const([1], "int64")))

    return through


def _own(b: Body, rows: str, chosen: str) -> Callable[..., str]:
    """Layer of each row's experts: [rows, k, 1, in] (or the rows themselves) -> [rows, k, 1, out]."""
    alone = b.op("Unsqueeze", rows, b.const([1, 2], "int64"))

    def through(layer: _Layer, x: str) -> str:
        weights = b.op("Transpose", layer.weight, perm=[0, 2, 1])
        y = b.op("MatMul", x or alone, b.op("Gather", weights, chosen, axis=0))
        if not layer.bias:
            return y
        bias = b.op("Gather", layer.bias, chosen, axis=0)
        return b.op("Add", y, b.op("Unsqueeze", bias, b.const([2], "int64")))

    return through


def _activated(b: Body, x: str) -> str:
    """``x`` behind the activation without a gate."""
    kind = as_text(b.attributes.get("activation_type", "relu"))
    if kind == "identity":
        return x
    if kind == "relu":
        return b.op("Relu", x)
    if kind == "relu2":
        positive = b.op("Relu", x)
        return b.op("Mul", positive, positive)
    if kind == "silu":
        return b.op("Mul", x, b.op("Sigmoid", x))
    if kind == "gelu":
        return fast_gelu(b, x)
    raise _refusal(b, f"activation_type={kind!r} without the weights of a gate", _SOURCE)


def _gated(b: Body, gate: str, linear: str) -> str:
    """Activation of the gate times what it gates."""
    kind = as_text(b.attributes.get("activation_type", "relu"))
    if kind != "swiglu":
        if kind not in ("silu", "relu", "gelu"):
            raise _refusal(b, f"activation_type={kind!r} with the weights of a gate", _SOURCE)
        return b.op("Mul", _activated(b, gate), linear)
    if int(b.attributes.get("swiglu_limit_after_activation", 0)):
        raise _refusal(b, "swiglu_limit_after_activation=1", _SOURCE)
    limit = float(b.attributes.get("swiglu_limit", np.inf))
    if np.isfinite(limit):
        gate = b.op("Min", gate, b.const(limit))
        linear = b.op("Max", b.op("Min", linear, b.const(limit)), b.const(-limit))
    slope, more = (float(b.attributes.get(f"activation_{n}", d)) for n, d in (("alpha", 1.0), ("beta", 0.0)))
    scaled = gate if slope == 1.0 else b.op("Mul", gate, b.const(slope))
    linear = linear if more == 0.0 else b.op("Add", linear, b.const(more))
    return b.op("Mul", b.op("Mul", gate, b.op("Sigmoid", scaled)), linear)


def _dequantized(b: Body, index: int, zero_index: int, layer: int) -> str:
    """Weights [experts, out, in] as float32; blocks of the input have scales [experts, out, blocks]."""
    bits = int(b.attributes.get(f"fc{layer}_expert_weight_bits", b.attributes.get("expert_weight_bits", 4)))
    packed, scales = _constant(b, index), _constant(b, index + 1).astype(np.float32)
    if bits not in (2, 4, 8):
        raise _refusal(b, f"weights of {bits} bits", "Quantise it to integers of 2, 4 or 8 bits.")
    count, rows = packed.shape[:2]
    values = unpacked(packed, bits).reshape(count, rows, -1).astype(np.float32)
    scales = scales.reshape(count, rows, -1)
    blocks = scales.shape[2]
    zero: np.ndarray | float = float(1 << (bits - 1))
    if b.input(zero_index):
        stored = _constant(b, zero_index)
        codes = unpacked(stored, bits).reshape(count, *stored.shape[1:2], -1)
        codes = codes[:, :, :blocks] if stored.ndim == 3 else codes.reshape(count, -1)[:, :rows, None]
        zero = np.repeat(codes.astype(np.float32), values.shape[2] // blocks, axis=2)
    scales = np.repeat(scales, values.shape[2] // blocks, axis=2)
    return b.constant(np.ascontiguousarray((values - zero) * scales))


def _constant(b: Body, index: int) -> np.ndarray:
    array = b.array(b.input(index))
    if array is None:
        raise _refusal(b, f"input {b.input(index)!r}, which is no constant", _SOURCE)
    return array


def _refusal(b: Body, what: str, hint: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(
        f"Node {b.node.name!r} ({b.node.op_type}) has {what}, which is not supported.", hint=hint
    )


EXPANSIONS = {"MoE": experts, "QMoE": quantized_experts}
"""Operator -> function that writes it out."""
