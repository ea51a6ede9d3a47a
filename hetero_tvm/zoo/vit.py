"""Vision Transformer (ViT-B/16): convolution patches, class token, pre-norm blocks, Gemm head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from hetero_tvm.zoo.graph import GraphBuilder


@dataclass(frozen=True)
class VitConfig:
    """Sizes of one Vision Transformer."""

    layers: int
    hidden: int
    heads: int
    feed_forward: int
    image: int = 224
    patch: int = 16
    classes: int = 1000

    @property
    def tokens(self) -> int:
        """Patches plus the class token."""
        return (self.image // self.patch) ** 2 + 1


def build(config: VitConfig, name: str, *, batch: int, seed: int) -> onnx.ModelProto:
    """Build a ViT: ``pixel_values`` float32 [batch, 3, image, image] -> ``logits`` [batch, classes]."""
    g = GraphBuilder(name, opset=17, seed=seed)
    pixels = g.input("pixel_values", TensorProto.FLOAT, (batch, 3, config.image, config.image))
    with g.scope("vit"):
        x = _embeddings(g, config, pixels)
        for layer in range(config.layers):
            with g.scope(f"encoder/layer.{layer}"):
                x = _block(g, config, x, batch)
        x = g.layer_norm("layernorm", x, config.hidden, epsilon=1e-12)
    first = g.op("Gather", x, g.const(0), axis=1)
    g.output("logits", g.gemm("classifier", first, config.hidden, config.classes), (batch, config.classes))
    return g.finish()


def _embeddings(g: GraphBuilder, config: VitConfig, pixels: str) -> str:
    hidden, patch = config.hidden, config.patch
    with g.scope("embeddings"):
        batch = g.dim(pixels, 0)
        with g.scope("patch_embeddings"):
            with g.scope("projection"):
                weight = g.normal("weight", (hidden, 3, patch, patch), 1.0 / np.sqrt(3 * patch * patch))
                bias = g.normal("bias", (hidden,), 0.1)
                window = {"kernel_shape": [patch] * 2, "strides": [patch] * 2, "pads": [0] * 4}
                x = g.op("Conv", pixels, weight, bias, **window, dilations=[1, 1], group=1)
            # flatten(2) keeps the first two dimensions and infers the last one
            front = g.op("Slice", g.op("Shape", x), g.const([0]), g.const([2]), g.const([0]))
            x = g.op("Reshape", x, g.op("Concat", front, g.const([-1]), axis=0))
            x = g.op("Transpose", x, perm=[0, 2, 1])
        token = g.expand(g.normal("cls_token", (1, 1, hidden), 0.5), [batch, -1, -1])
        x = g.op("Concat", token, x, axis=1)
        return g.op("Add", x, g.normal("position_embeddings", (1, config.tokens, hidden), 0.3))


def _block(g: GraphBuilder, config: VitConfig, x: str, batch: int) -> str:
    hidden, inner = config.hidden, config.feed_forward
    residual_gain = 1.0 / np.sqrt(config.layers)
    y = g.layer_norm("layernorm_before", x, hidden, epsilon=1e-12)
    with g.scope("attention"):
        with g.scope("attention"):
            y = _attention(g, config, y, batch)
        y = g.linear("output/dense", y, hidden, hidden, gain=residual_gain)
    x = g.op("Add", y, x)
    y = g.layer_norm("layernorm_after", x, hidden, epsilon=1e-12)
    with g.scope("intermediate"):
        y = g.linear("dense", y, hidden, inner)
        with g.scope("intermediate_act_fn"):
            y = g.gelu_erf(y)
    with g.scope("output"):
        y = g.linear("dense", y, inner, hidden, gain=2 * residual_gain)
        return g.op("Add", y, x)


def _attention(g: GraphBuilder, config: VitConfig, x: str, batch: int) -> str:
    """Attention with constant Reshape targets and the scale split over query and key (SDPA export)."""
    heads, size = config.heads, config.hidden // config.heads
    shape = g.const([batch, config.tokens, heads, size])
    scale = g.const(size**-0.25)

    def project(path: str, perm: list[int], gain: float) -> str:
        y = g.linear(path, x, config.hidden, config.hidden, gain=gain)
        return g.op("Transpose", g.op("Reshape", y, shape), perm=perm)

    query = g.op("Mul", project("query", [0, 2, 1, 3], 1.2), scale)
    key = g.op("Mul", project("key", [0, 2, 3, 1], 1.2), scale)
    value = project("value", [0, 2, 1, 3], 1.0)
    weights = g.op("Softmax", g.op("MatMul", query, key), axis=-1)
    context = g.op("Transpose", g.op("MatMul", weights, value), perm=[0, 2, 1, 3])
    return g.op("Reshape", context, g.const([batch, config.tokens, config.hidden]))
