"""The encoder of an encoder-decoder in Relax: a source in, its keys and values for every layer of the decoder
into pages.

``main(ids [n] or features [frames, mels], positions [n], sequences [n], tables [s, v], source_keys,
source_values)`` gives the rows of the encoder [n, width].  ``sequences`` are zeros: one source at a time, so
that its rows see each other and nothing is padded.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Expr, IRModule, relax
from hetero_tvm.language.families.decoder import Rope
from hetero_tvm.language.layers import LayerBuilder, symbol
from hetero_tvm.language.weights import DecoderWeights
from hetero_tvm.ops.decoding.contracts import (
    AppendSource,
    Heads,
    Linear,
    RelativeBias,
    Rotate,
    SourceAttention,
    Unfold,
)
from hetero_tvm.ops.decoding.storage import storage_of, stored
from hetero_tvm.targets.base.compiling import StepKernels

_UNBOUNDED = 1 << 24
_HIDDEN = -1e30
"""Bias of a score that takes no part."""
_STRIDES = (1, 2)
"""Frames per row of the convolutions of audio, one after the other."""


def build_encoder(
    weights: DecoderWeights, decoder: DecoderWeights, heads: Heads, kernels: StepKernels
) -> IRModule:
    """The encoder with ``weights``; ``decoder`` has the matrices of the keys and values.

    Returns
    -------
    The module, whose ``main`` calls kernels only.
    """
    return _Encoder(weights, decoder, heads, kernels).build()


class EncoderLayers(LayerBuilder):
    """Layers whose rows see each other in both directions."""

    def biases(self, positions: Expr) -> list[Expr]:
        """Biases of scores by distance; empty where the model has none."""
        d = self.decoder
        if d.relative is None:
            return []
        return [self._by_distance(positions, self.weights.relative(d.context, both=True))]

    def _by_distance(self, positions: Expr, table: np.ndarray) -> Expr:
        """Biases [heads, n, n] of a table [heads, distances]."""
        heads, n = len(table), self.rows
        ty = relax.TensorType([heads, n, n], "float32")
        return self.call(RelativeBias(heads, self.decoder.context), [positions, constant(table)], ty)

    def windows(self, positions: Expr) -> dict[int, Expr]:
        """Biases, of all heads, that hide what lies outside of a window, by its size: rows see those of a
        distance of less than it on both sides."""
        d = self.decoder
        distances = np.abs(np.arange(1 - d.context, d.context))
        return {
            window: self._by_distance(
                positions, np.where(distances < window, 0.0, _HIDDEN).astype(np.float32)[None]
            )
            for window in sorted({layer.window for layer in d.layers if layer.window})
        }

    def layer(
        self, x: Expr, biases: list[Expr], number: int, windows: Mapping[int, Expr] | None = None
    ) -> Expr:
        """Rows after one layer; ``windows`` are biases by the size of a window."""
        d, names = self.decoder, self.weights.names
        base, width, own = names.layer.format(number), d.heads * d.dim, d.layers[number]
        normed = x if own.bare else self.before(x, base + names.attention_norm)
        total = (d.heads + 2 * d.kv_heads) * d.dim
        matrices = [base + name for name in names.qkv]
        qkv = self.linear(normed, matrices, 3 * width, d.width, rows=names.qkv_rows, total=total)
        if d.ropes:
            qkv = self._rotated(qkv, base, d.ropes[own.rope])
        if own.window and windows:
            biases = [windows[own.window]]
        attention = SourceAttention(d.heads, d.dim, d.scale, d.context, bool(biases), own.window > 0)
        out = self.call(attention, [qkv, *biases], self.type(self.rows, width))
        behind = names.attention_post_norm if d.post_norms else names.attention_norm
        x = self.added(x, out, base + names.out, width, base + behind)
        return self.feed_forward(x, base)

    def _rotated(self, qkv: Expr, base: str, rope: Rope) -> Expr:
        """Queries and keys by their positions, and normalised before where the model does that."""
        d, names = self.decoder, self.weights.names
        table = constant(rope.table(d.context))
        scales = []
        for name in names.head_norms if d.head_norms else ():
            scale = self.weights.checkpoint.array(self.weights.need(base + name))
            scales.append(constant(scale + np.float32(d.norm_offset)))
        op = Rotate(d.heads, d.dim, d.context, d.eps if d.head_norms else None)
        return self.call(op, [qkv, table, *scales], self.type(self.rows, 3 * d.heads * d.dim))


class _Encoder(EncoderLayers):
    def __init__(self, weights: DecoderWeights, decoder: DecoderWeights, heads: Heads, kernels: StepKernels):
        super().__init__(weights, kernels, weights.decoder.context if weights.decoder.mels else symbol("n"))
        self._across, self._heads = decoder, heads

    def build(self) -> IRModule:
        d, n = self.decoder, self.rows
        s, v, q = map(symbol, "svq")
        shapes = [(d.context * 2, d.mels) if d.mels else (n,), (n,), (n,), (s, v), *self._heads.pools(q)]
        dtypes = ["float32" if d.mels else "int32", *["int32"] * 3, *[self._heads.cache] * 2]
        types = [relax.TensorType(list(shape), dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        names = ("source", "positions", "sequences", "tables", "source_keys", "source_values")
        inputs = [relax.Var(name, ty) for name, ty in zip(names, types, strict=True)]
        bounds = {"n": d.context, "s": 1, "v": _UNBOUNDED, "q": _UNBOUNDED}
        with self.builder.function(
            "main", inputs, attrs={"tir_var_upper_bound": bounds, "global_symbol": "main"}
        ):
            with self.builder.dataflow():
                source, *places = inputs[:4]
                positions, pools = places[0], list(inputs[4:])
                x = self._audio(source) if d.mels else self._tokens(source, positions)
                biases = self.biases(positions)
                for number in range(len(d.layers)):
                    x = self.layer(x, biases, number)
                if not d.norms_after:
                    x = self.norm(x, self.weights.names.norm)
                pools = self._keys_and_values(x, places, pools)
                result = self.builder.emit_output(x)
            self.builder.emit_func_output(result)
        return self.builder.get()

    def _tokens(self, ids: Expr, positions: Expr) -> Expr:
        """Rows of the stream for tokens, whose table may be that of the decoder and of its logits."""
        d, across = self.decoder, self._across
        shared = across.head() is None and across.embeddings() == self.weights.embeddings()
        table = across.checkpoint.matrix(across.embeddings()) if shared else None
        head = Linear(d.vocab, d.width, storage_of(stored(table, across.storage))) if shared else None
        return self.embedding(ids, positions, head)[0]

    def _audio(self, features: Expr) -> Expr:
        """Rows of the stream for frames of audio: two convolutions, and positions."""
        d, names = self.decoder, self.weights.names
        x, width, frames = features, d.mels, 2 * d.context
        positions = constant(self.weights.positions())
        for name, stride in zip(names.convolutions, _STRIDES, strict=True):
            frames //= stride
            unfold = Unfold(width, 3, stride)
            x = self.call(unfold, [x], self.type(frames, 3 * width))
            weight = self.weights.convolution(name, d.width, width, 3)
            bias = self.weights.bias([name], d.width)
            last = stride == _STRIDES[-1]
            op = Linear(d.width, 3 * width, storage_of(weight), bias is not None, "gelu_erf", residual=last)
            x = self.product(x, weight, op, frames, bias, residual=positions if last else None)
            width = d.width
        return x

    def _keys_and_values(self, x: Expr, places: list[Expr], pools: list[Expr]) -> list[Expr]:
        """Keys and values of the source for every layer of the decoder."""
        across, h = self._across, self._heads
        for number in range(h.layers):
            base = across.names.layer.format(number)
            names = [base + name for name in across.names.cross_kv]
            kv = self.linear(x, names, 2 * h.kv_heads * h.dim, self.decoder.width, weights=across)
            index = constant(np.array([number], np.int32))
            pools = self.in_place(AppendSource(h), [kv, *places, index, *pools], 2, [p.ty for p in pools])
        return pools
