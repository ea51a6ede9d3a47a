"""GPT-2 (prefill): packed QKV with Split, causal mask by Where, tanh GELU, tied language-model head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from hetero_tvm.zoo.graph import FLOAT32_MIN, GraphBuilder


@dataclass(frozen=True)
class Gpt2Config:
    """Sizes of one GPT-2."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int = 50257
    positions: int = 1024


def build(config: Gpt2Config, name: str, *, batch: int, sequence: int, seed: int) -> onnx.ModelProto:
    """Build a GPT-2: inputs ``input_ids``, ``attention_mask`` int64 [batch, sequence];
    output ``logits`` [batch, sequence, vocabulary]."""
    g = GraphBuilder(name, opset=13, seed=seed)
    ids = g.input("input_ids", TensorProto.INT64, (batch, sequence))
    mask = g.input("attention_mask", TensorProto.INT64, (batch, sequence))
    with g.scope("transformer"):
        table = g.normal("wte.weight", (config.vocabulary, config.hidden), 0.1)
        bias = g.padding_bias(mask)
        x = _embeddings(g, config, ids, table)
        for layer in range(config.layers):
            with g.scope(f"h.{layer}"):
                x = _block(g, config, x, bias)
        x = g.layer_norm("ln_f", x, config.hidden, epsilon=1e-5, decomposed=True)
    with g.scope("lm_head"):
        logits = g.op("MatMul", x, g.op("Transpose", table, perm=[1, 0]))
    g.output("logits", logits, (batch, sequence, config.vocabulary))
    return g.finish()


def _embeddings(g: GraphBuilder, config: Gpt2Config, ids: str, table: str) -> str:
    positions = g.op("Range", g.const(0), g.dim(ids, 1), g.const(1))
    positions = g.op("Unsqueeze", positions, g.const([0]))
    with g.scope("wte"):
        words = g.op("Gather", table, ids)
    with g.scope("wpe"):
        places = g.op("Gather", g.normal("weight", (config.positions, config.hidden), 0.05), positions)
    return g.op("Add", words, places)


def _conv1d(g: GraphBuilder, path: str, x: str, fan_in: int, fan_out: int, gain: float = 1.0) -> str:
    """Hugging Face's Conv1D: flatten to a matrix, Gemm with an ``[in, out]`` weight, restore."""
    with g.scope(path):
        shape = g.shape_list([g.dim(x, 0), g.dim(x, 1), fan_out])
        rows = g.op("Reshape", x, g.const([-1, fan_in]))
        weight = g.normal("weight", (fan_in, fan_out), gain / np.sqrt(fan_in))
        y = g.op("Gemm", rows, weight, g.normal("bias", (fan_out,), 0.1), alpha=1.0, beta=1.0)
        return g.op("Reshape", y, shape)


def _block(g: GraphBuilder, config: Gpt2Config, x: str, bias: str) -> str:
    hidden = config.hidden
    # GPT-2 scales what enters the residual stream, so that its size does not grow with depth.
    residual_gain = 1.0 / np.sqrt(2 * config.layers)
    y = g.layer_norm("ln_1", x, hidden, epsilon=1e-5, decomposed=True)
    with g.scope("attn"):
        y = _conv1d(g, "c_proj", _attention(g, config, y, bias), hidden, hidden, residual_gain)
    x = g.op("Add", y, x)
    y = g.layer_norm("ln_2", x, hidden, epsilon=1e-5, decomposed=True)
    with g.scope("mlp"):
        y = _conv1d(g, "c_fc", y, hidden, 4 * hidden)
        with g.scope("act"):
            y = _gelu_tanh(g, y)
        y = _conv1d(g, "c_proj", y, 4 * hidden, hidden, 2 * residual_gain)
    return g.op("Add", x, y)


def _attention(g: GraphBuilder, config: Gpt2Config, x: str, bias: str) -> str:
    hidden, heads = config.hidden, config.heads
    size = hidden // heads
    packed = _conv1d(g, "c_attn", x, hidden, 3 * hidden, 1.2)
    parts = g.multi("Split", packed, g.const([hidden] * 3), outputs=3, axis=2)

    def split(y: str, perm: list[int]) -> str:
        shape = g.shape_list([g.dim(y, 0), g.dim(y, 1), heads, size])
        return g.op("Transpose", g.op("Reshape", y, shape), perm=perm)

    query, key, value = (
        split(y, p) for y, p in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
    )
    scores = g.op("Div", g.op("MatMul", query, key), g.const(np.sqrt(size)))
    # The buffer holds the whole triangle; the model slices it to [1, 1, sequence, sequence].
    triangle = np.tril(np.ones((config.positions, config.positions), dtype=bool))[None, None]
    causal = g.parameter("transformer.causal_mask", triangle, absolute=True)
    length = g.op("Unsqueeze", g.dim(query, 2), g.const([0]))
    rows = g.op("Slice", causal, g.const([0]), length, g.const([2]), g.const([1]))
    visible = g.op("Slice", rows, g.const([0]), length, g.const([3]), g.const([1]))
    scores = g.op("Add", g.op("Where", visible, scores, g.const(FLOAT32_MIN)), bias)
    context = g.op("MatMul", g.op("Softmax", scores, axis=-1), value)
    context = g.op("Transpose", context, perm=[0, 2, 1, 3])
    return g.op("Reshape", context, g.shape_list([g.dim(context, 0), g.dim(context, 1), hidden]))


def _gelu_tanh(g: GraphBuilder, x: str) -> str:
    """0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))), node by node."""
    half = g.op("Mul", x, g.const(0.5))
    cube = g.op("Mul", g.op("Pow", x, g.const(3.0)), g.const(0.044715))
    inner = g.op("Mul", g.op("Add", x, cube), g.const(np.sqrt(2.0 / np.pi)))
    return g.op("Mul", half, g.op("Add", g.op("Tanh", inner), g.const(1.0)))
