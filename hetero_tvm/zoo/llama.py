"""Llama-style decoder (prefill): RMSNorm, rotary embedding, grouped-query attention, SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from hetero_tvm.zoo.graph import FLOAT32_MIN, GraphBuilder


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of one Llama; ``kv_heads`` divides ``heads``."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int = 32000


def build(config: LlamaConfig, name: str, *, batch: int, sequence: int, seed: int) -> onnx.ModelProto:
    """Build a Llama: inputs ``input_ids``, ``attention_mask`` int64 [batch, sequence];
    output ``logits`` [batch, sequence, vocabulary]."""
    g = GraphBuilder(name, opset=17, seed=seed)
    ids = g.input("input_ids", TensorProto.INT64, (batch, sequence))
    mask = g.input("attention_mask", TensorProto.INT64, (batch, sequence))
    with g.scope("model"):
        with g.scope("embed_tokens"):
            x = g.op("Gather", g.normal("weight", (config.vocabulary, config.hidden), 0.5), ids)
        bias = _causal_bias(g, ids, mask)
        cos, sin = _rotary(g, config, ids)
        for layer in range(config.layers):
            with g.scope(f"layers.{layer}"):
                x = _block(g, config, x, bias, cos, sin)
        x = _rms_norm(g, "norm", x, config.hidden)
    with g.scope("lm_head"):
        weight = g.normal("weight", (config.vocabulary, config.hidden), 2.0 / np.sqrt(config.hidden))
        logits = g.op("MatMul", x, g.op("Transpose", weight, perm=[1, 0]))
    g.output("logits", logits, (batch, sequence, config.vocabulary))
    return g.finish()


def _causal_bias(g: GraphBuilder, ids: str, mask: str) -> str:
    """finfo.min above the diagonal and on padded keys, of shape [batch, 1, sequence, sequence]."""
    batch, length = g.dim(ids, 0), g.dim(ids, 1)
    fill = numpy_helper.from_array(np.array([FLOAT32_MIN], np.float32))
    square = g.op("ConstantOfShape", g.shape_list([length, length]), value=fill)
    causal = g.op("Trilu", square, g.const(1), upper=1)
    causal = g.op("Unsqueeze", g.op("Unsqueeze", causal, g.const([0])), g.const([1]))
    causal = g.expand(causal, [batch, 1, -1, -1])
    wide = g.op("Unsqueeze", g.op("Unsqueeze", mask, g.const([1])), g.const([2]))
    total = g.op("Add", causal, g.op("Cast", wide, to=TensorProto.FLOAT))
    # zero where the key is visible to the query by its place but padded
    return g.op("Where", g.op("Equal", total, g.const(0.0)), g.const(FLOAT32_MIN), causal)


def _rotary(g: GraphBuilder, config: LlamaConfig, ids: str) -> tuple[str, str]:
    """cos and sin of the rotary angles, each of shape [1, 1, sequence, head size]."""
    size = config.hidden // config.heads
    with g.scope("rotary_emb"):
        frequencies = 1.0 / 10000.0 ** (np.arange(0, size, 2, dtype=np.float32) / size)
        table = g.parameter("inv_freq", frequencies.astype(np.float32)[None, :, None])
        places = g.op("Range", g.const(0), g.dim(ids, 1), g.const(1))
        places = g.op("Cast", g.op("Unsqueeze", places, g.const([0, 1])), to=TensorProto.FLOAT)
        angles = g.op("Transpose", g.op("MatMul", table, places), perm=[0, 2, 1])
        angles = g.op("Concat", angles, angles, axis=-1)
        cos, sin = g.op("Cos", angles), g.op("Sin", angles)
    return g.op("Unsqueeze", cos, g.const([1])), g.op("Unsqueeze", sin, g.const([1]))


def _rms_norm(g: GraphBuilder, path: str, x: str, width: int) -> str:
    with g.scope(path):
        square = g.op("ReduceMean", g.op("Pow", x, g.const(2.0)), axes=[-1])
        root = g.op("Sqrt", g.op("Add", square, g.const(1e-6)))
        y = g.op("Mul", x, g.op("Reciprocal", root))
        return g.op("Mul", g.normal("weight", (width,), 0.1, mean=1.0), y)


def _block(g: GraphBuilder, config: LlamaConfig, x: str, bias: str, cos: str, sin: str) -> str:
    hidden, inner = config.hidden, config.feed_forward
    residual_gain = 1.0 / np.sqrt(config.layers)
    y = _rms_norm(g, "input_layernorm", x, hidden)
    with g.scope("self_attn"):
        y = _attention(g, config, y, bias, cos, sin)
        y = g.linear("o_proj", y, hidden, hidden, gain=residual_gain, bias=False)
    x = g.op("Add", x, y)
    y = _rms_norm(g, "post_attention_layernorm", x, hidden)
    with g.scope("mlp"):
        gate = g.linear("gate_proj", y, hidden, inner, bias=False)
        with g.scope("act_fn"):
            gate = g.op("Mul", gate, g.op("Sigmoid", gate))
        up = g.linear("up_proj", y, hidden, inner, bias=False)
        y = g.linear("down_proj", g.op("Mul", gate, up), inner, hidden, gain=2 * residual_gain, bias=False)
    return g.op("Add", x, y)


def _attention(g: GraphBuilder, config: LlamaConfig, x: str, bias: str, cos: str, sin: str) -> str:
    hidden, heads, kv_heads = config.hidden, config.heads, config.kv_heads
    size = hidden // heads
    batch, length = g.dim(x, 0), g.dim(x, 1)

    def project(path: str, count: int, gain: float) -> str:
        y = g.linear(path, x, hidden, count * size, gain=gain, bias=False)
        y = g.op("Reshape", y, g.shape_list([batch, length, count, size]))
        return g.op("Transpose", y, perm=[0, 2, 1, 3])

    query = project("q_proj", heads, 1.2)
    key = project("k_proj", kv_heads, 1.2)
    value = project("v_proj", kv_heads, 1.0)
    query, key = _rotate(g, query, cos, sin, size), _rotate(g, key, cos, sin, size)
    groups = heads // kv_heads
    key, value = (_repeat_heads(g, y, batch, length, kv_heads, groups, size) for y in (key, value))
    scores = g.op("MatMul", query, g.op("Transpose", key, perm=[0, 1, 3, 2]))
    scores = g.op("Add", g.op("Mul", scores, g.const(size**-0.5)), bias)
    context = g.op("MatMul", g.op("Softmax", scores, axis=-1), value)
    context = g.op("Transpose", context, perm=[0, 2, 1, 3])
    return g.op("Reshape", context, g.shape_list([batch, length, hidden]))


def _rotate(g: GraphBuilder, x: str, cos: str, sin: str, size: int) -> str:
    """x * cos + rotate_half(x) * sin, with rotate_half as Slice, Slice, Neg, Concat."""
    half, last = g.const([size // 2]), g.const([3])
    low = g.op("Slice", x, g.const([0]), half, last, g.const([1]))
    high = g.op("Slice", x, half, g.const([np.iinfo(np.int64).max]), last, g.const([1]))
    turned = g.op("Concat", g.op("Neg", high), low, axis=-1)
    return g.op("Add", g.op("Mul", x, cos), g.op("Mul", turned, sin))


def _repeat_heads(
    g: GraphBuilder, x: str, batch: str, length: str, heads: int, groups: int, size: int
) -> str:
    """[batch, kv heads, length, size] -> [batch, kv heads * groups, length, size]."""
    if groups == 1:
        return x
    wide = g.expand(g.op("Unsqueeze", x, g.const([2])), [batch, heads, groups, length, size])
    return g.op("Reshape", wide, g.shape_list([batch, heads * groups, length, size]))
