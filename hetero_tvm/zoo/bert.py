"""BERT encoders: MiniLM-L6 (LayerNormalization, opset 17) and BERT base (decomposed, opset 14)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from hetero_tvm.zoo.graph import GraphBuilder


@dataclass(frozen=True)
class BertConfig:
    """Sizes of one BERT; ``opset`` below 17 means decomposed layer norms."""

    layers: int
    hidden: int
    heads: int
    feed_forward: int
    vocabulary: int = 30522
    positions: int = 512
    opset: int = 17
    pooler: bool = False


def build(config: BertConfig, name: str, *, batch: int, sequence: int, seed: int) -> onnx.ModelProto:
    """Build a BERT.

    Inputs ``input_ids``, ``attention_mask``, ``token_type_ids`` int64 [batch, sequence];
    outputs ``last_hidden_state`` [batch, sequence, hidden] and, with a pooler, ``pooler_output``.
    """
    g = GraphBuilder(name, opset=config.opset, seed=seed)
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    ids, mask, types = (g.input(i, TensorProto.INT64, (batch, sequence)) for i in inputs)
    bias = g.padding_bias(mask)
    x = _embeddings(g, config, ids, types)
    for layer in range(config.layers):
        with g.scope(f"encoder/layer.{layer}"):
            x = _layer(g, config, x, bias)
    if config.pooler:
        first = g.op("Gather", x, g.const(0), axis=1)
        with g.scope("pooler"):
            pooled = g.gemm("dense", first, config.hidden, config.hidden)
            pooled = g.op("Tanh", pooled)
    g.output("last_hidden_state", x, (batch, sequence, config.hidden))
    if config.pooler:
        g.output("pooler_output", pooled, (batch, config.hidden))
    return g.finish()


def _norm(g: GraphBuilder, config: BertConfig, path: str, x: str) -> str:
    return g.layer_norm(path, x, config.hidden, epsilon=1e-12, decomposed=config.opset < 17)


def _embeddings(g: GraphBuilder, config: BertConfig, ids: str, types: str) -> str:
    with g.scope("embeddings"):
        table = g.parameter("position_ids", np.arange(config.positions, dtype=np.int64)[None])
        length = g.op("Unsqueeze", g.dim(ids, 1), g.const([0]))
        positions = g.op("Slice", table, g.const([0]), length, g.const([1]), g.const([1]))
        with g.scope("word_embeddings"):
            words = g.op("Gather", g.normal("weight", (config.vocabulary, config.hidden), 0.5), ids)
        with g.scope("token_type_embeddings"):
            kinds = g.op("Gather", g.normal("weight", (2, config.hidden), 0.2), types)
        x = g.op("Add", words, kinds)
        with g.scope("position_embeddings"):
            places = g.op("Gather", g.normal("weight", (config.positions, config.hidden), 0.3), positions)
        return _norm(g, config, "LayerNorm", g.op("Add", x, places))


def _layer(g: GraphBuilder, config: BertConfig, x: str, bias: str) -> str:
    hidden, inner = config.hidden, config.feed_forward
    with g.scope("attention"):
        with g.scope("self"):
            context = _self_attention(g, config, x, bias)
        with g.scope("output"):
            y = g.linear("dense", context, hidden, hidden)
            x = _norm(g, config, "LayerNorm", g.op("Add", y, x))
    with g.scope("intermediate"):
        y = g.linear("dense", x, hidden, inner)
        with g.scope("intermediate_act_fn"):
            y = g.gelu_erf(y)
    with g.scope("output"):
        y = g.linear("dense", y, inner, hidden, gain=1.5)
        return _norm(g, config, "LayerNorm", g.op("Add", y, x))


def _self_attention(g: GraphBuilder, config: BertConfig, x: str, bias: str) -> str:
    hidden, heads = config.hidden, config.heads
    size = hidden // heads
    # Query and key a little above unit gain: the softmax is peaked, as in trained models.
    query = g.linear("query", x, hidden, hidden, gain=1.2)

    def split(y: str, perm: list[int]) -> str:
        shape = g.shape_list([g.dim(y, 0), g.dim(y, 1), heads, size])
        return g.op("Transpose", g.op("Reshape", y, shape), perm=perm)

    key = split(g.linear("key", x, hidden, hidden, gain=1.2), [0, 2, 3, 1])
    value = split(g.linear("value", x, hidden, hidden), [0, 2, 1, 3])
    scores = g.op("MatMul", split(query, [0, 2, 1, 3]), key)
    scores = g.op("Add", g.op("Div", scores, g.const(np.sqrt(size))), bias)
    context = g.op("MatMul", g.op("Softmax", scores, axis=-1), value)
    context = g.op("Transpose", context, perm=[0, 2, 1, 3])
    return g.op("Reshape", context, g.shape_list([g.dim(context, 0), g.dim(context, 1), hidden]))
