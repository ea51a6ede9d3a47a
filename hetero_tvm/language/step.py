"""The step of a decoder in Relax: new tokens in, logits of some of them out, keys and values kept in pages.

``main(ids [n], positions [n], sequences [n], tables [s, w], picked [r], rope [c, t, rotated], keys, values)``
gives logits [r, vocab].  The pools of keys and values are arguments that the step writes to: the library has
no state, and whoever calls it decides how many sequences there are and where their pages lie.

A decoder that attends to a source takes ``sources [n]`` (the last row of each row's source), ``source_tables
[s, v]`` and the pools of their keys and values as well, which it reads.  One with layers that keep a state
takes ``slots [s]``, the row of each sequence in the pool ``states [u, numbers]``, which it writes to.
"""

from __future__ import annotations

import dataclasses
import json

import numpy as np

from hetero_tvm.errors import ModelError
from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Expr, IRModule, relax
from hetero_tvm.language.families.decoder import Decoder, Layer
from hetero_tvm.language.layers import LayerBuilder, symbol
from hetero_tvm.language.states import StateLayer
from hetero_tvm.language.streams import StreamLayers, with_low_rank
from hetero_tvm.language.weights import DecoderWeights
from hetero_tvm.ops.decoding.contracts import KEYS, Append, CachedAttention, Heads, Linear
from hetero_tvm.ops.decoding.states import Gate
from hetero_tvm.ops.decoding.storage import Storage, storage_of, stored
from hetero_tvm.targets.base.compiling import StepKernels

INPUTS = ("ids", "positions", "sequences", "tables", "picked", "rope", "keys", "values")
SOURCE_INPUTS = ("sources", "source_tables", "source_keys", "source_values")
STATE_INPUTS = ("slots", "states")
KERNELS = "hetero_tvm.kernels"
"""Attribute of the step: its kernels for the manifest, as JSON."""
_UNBOUNDED = 1 << 24


def build_step(
    weights: DecoderWeights, heads: Heads, kernels: StepKernels, rows: int, embeds: bool = False
) -> tuple[IRModule, int]:
    """The step for at most ``rows`` new tokens at once; one that ``embeds`` gives the normalised rows that
    logits are made of, [r, width], in their place.

    Returns
    -------
    The module, whose ``main`` calls kernels only; and bytes of weights that a step of one token reads.
    """
    return _Step(weights, heads, kernels, embeds).build(rows)


def heads_of(decoder: Decoder, page: int, cache: str) -> Heads:
    """Heads of a decoder, whose keys and values lie in pages of so many tokens, stored as this type."""
    d = decoder
    return Heads(d.heads, d.kv_heads, d.dim, d.attending, page, cache, d.values)


class _Step(LayerBuilder):
    def __init__(self, weights: DecoderWeights, heads: Heads, kernels: StepKernels, embeds: bool):
        super().__init__(weights, kernels, symbol("n"))
        self._heads, self._embeds = heads, embeds
        self._picked = symbol("r")
        self._biases: list[Expr] = []
        self._slots: Expr | None = None
        self._states: Expr | None = None

    def build(self, rows: int) -> tuple[IRModule, int]:
        d, n, r = self.decoder, self.rows, self._picked
        s, w, c, p, v, q = map(symbol, "swcpvq")
        rope = (c, max(len(d.ropes), 1), max(d.rotated, 1))
        shapes = [(n,), (n,), (n,), (s, w), (r,), rope, *self._heads.pools(p)]
        dtypes = ["int32"] * 5 + ["float32"] + [self._heads.cache] * 2
        if d.cross:
            shapes += [(n,), (s, v), *self._heads.pools(q)]
            dtypes += ["int32"] * 2 + [self._heads.cache] * 2
        if d.state:
            shapes += [(s,), (symbol("u"), d.state)]
            dtypes += ["int32", "float32"]
        types = [relax.TensorType(list(shape), dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        names = (*INPUTS, *(SOURCE_INPUTS if d.cross else ()), *(STATE_INPUTS if d.state else ()))
        inputs = [relax.Var(name, ty) for name, ty in zip(names, types, strict=True)]
        bounds = dict.fromkeys("wcpvqu", _UNBOUNDED) | {"n": rows, "r": rows, "s": rows}
        attrs = {"tir_var_upper_bound": bounds, "global_symbol": "main"}
        with self.builder.function("main", inputs, attrs=attrs):
            with self.builder.dataflow():
                ids, positions, sequences, tables, picked, rope_table, *pools = inputs
                if d.state:
                    pools, (self._slots, self._states) = pools[:-2], pools[-2:]
                pools, source = pools[:2], pools[2:]
                self._places = [positions, sequences, tables]
                if source:
                    self._source_places = [source[0], sequences, source[1]]
                    self._source = source[2:]
                self._rope = rope_table
                if d.relative is not None or d.slopes:
                    weights, longest = self.weights, d.context
                    table = weights.slopes(longest) if d.slopes else weights.relative(longest, both=False)
                    self._biases = [constant(np.pad(table, ((0, 0), (0, KEYS))))]
                x, finish = self._embedding(ids, positions)
                inputs = self.layer_inputs(x, ids, positions) if d.layer_inputs else None
                streams = StreamLayers(self, x) if d.streams else None
                for number, layer in enumerate(d.layers):
                    if streams is not None:
                        predicted = streams.predicted(self.weights.names.layer.format(number))
                        x, pools = self._layer(predicted[0], pools, number, layer)
                        streams.correct(predicted, x, inputs, number)
                        continue
                    x, pools = self._layer(x, pools, number, layer)
                    if inputs is not None:
                        x = self.with_input(x, inputs, number)
                if streams is not None:
                    x = streams.merged()
                result = self.builder.emit_output(finish(self._last(x, picked)))
            self.builder.emit_func_output(result)
        return self.builder.get().with_attr(KERNELS, json.dumps(self.kernel_table())), self.read

    # parts -------------------------------------------------------------------------------------
    def _embedding(self, ids: Expr, positions: Expr):
        """Rows of the stream; and what makes logits of rows, whose matrix may be the same table."""
        d, weights = self.decoder, self.weights
        if self._embeds:
            return self.embedding(ids, positions)[0], lambda rows: rows
        name = weights.head()
        matrix = stored(weights.checkpoint.matrix(name or weights.embeddings()), weights.storage)
        bias = weights.head_bias()
        storage: Storage = storage_of(matrix)
        width = d.embed_width or d.width
        op = Linear(d.vocab, width, storage, bias is not None, softcap=d.logits_softcap)
        x, packed = self.embedding(ids, positions, op if name is None else None)
        if packed is not None:  # the same layout, of which zeros that no product reads are left out
            packed = packed[: 2 + storage.zero_points if storage.bits else 1]

        def logits(rows: Expr) -> Expr:
            if d.embed_width:
                inner = weights.matrix([weights.names.project_out], width, d.width)
                rows = self.product(rows, inner, Linear(width, d.width, storage_of(inner)), self._picked)
            if d.head_activation:
                rows = self._before_logits(rows)
            return self.product(rows, matrix, op, self._picked, bias, packed=packed)

        return x, logits

    def _before_logits(self, rows: Expr) -> Expr:
        """The rows that logits are made of, behind a matrix and a norm of their own."""
        d, weights = self.decoder, self.weights
        dense = weights.names.head_dense
        matrix, bias = weights.matrix([dense], d.width, d.width), weights.bias([dense], d.width)
        op = Linear(d.width, d.width, storage_of(matrix), bias is not None, d.head_activation)
        rows = self.product(rows, matrix, op, self._picked, bias)
        return self.norm(rows, weights.names.head_norm, rows=self._picked)

    def _last(self, x: Expr, picked: Expr) -> Expr:
        """The rows that logits are made of, normalised."""
        d, names = self.decoder, self.weights.names
        name = names.norm
        if d.norms_after:
            name = names.layer.format(len(d.layers) - 1) + names.mlp_norm
        scale = 1.0 if self._embeds else d.final_scale
        return self.norm(x, name, picked=picked, rows=self._picked, scale=scale)

    def _layer(self, x: Expr, pools: list[Expr], number: int, layer: Layer) -> tuple[Expr, list[Expr]]:
        whole = self.decoder
        if layer.norms_first:
            self.decoder = dataclasses.replace(whole, pre_norms=True, post_norms=False)
        x, pools = self._parts_of_layer(x, pools, number, layer)
        self.decoder = whole
        return x, pools

    def _parts_of_layer(
        self, x: Expr, pools: list[Expr], number: int, layer: Layer
    ) -> tuple[Expr, list[Expr]]:
        d, names = self.decoder, self.weights.names
        base, beside, normed = names.layer.format(number), None, x
        if layer.recurs or layer.attends:
            beside = normed = x if layer.bare else self.before(x, base + names.attention_norm)
        if layer.recurs:
            x = self._recurrence(x, normed, base, sum(other.recurs for other in d.layers[:number]))
        if layer.attends:
            x, pools, beside = self._attention(x, normed, pools, number, layer)
            if d.low_rank:
                x = with_low_rank(self, x, normed, base)
        if not layer.feeds:
            return x, pools
        factor = None if d.layer_inputs else self.factor(base)
        if layer.mixed and d.mixtures_beside:
            return self.beside_mixture(x, base, factor), pools
        if layer.mixed:
            rows = beside if d.parallel else self.before(x, base + names.mlp_norm)
            return self.mixture(x, base, rows), pools
        last = d.norms_after and number == len(d.layers) - 1
        inner, normed_by = layer.inner or d.inner, beside if d.parallel else None
        return self.feed_forward(x, base, last, normed_by, inner, factor, layer.cut), pools

    def _recurrence(self, x: Expr, normed: Expr, base: str, number: int) -> Expr:
        """The stream after what a layer makes with its state, the ``number``-th of those that have one."""
        d, names = self.decoder, self.weights.names
        assert d.recurrence is not None and self._slots is not None and self._states is not None
        places, first = [*self._places[:2], self._slots], number * d.recurrence.numbers
        builder = StateLayer(self, d.recurrence, d.state, base + names.recurrence, places, first)
        inner, self._states = builder.build(normed, self._states)
        return self.added(x, inner, builder.out, d.recurrence.inner, base + names.attention_post_norm)

    def _attention(
        self, x: Expr, normed: Expr, pools: list[Expr], number: int, layer: Layer
    ) -> tuple[Expr, list[Expr], Expr]:
        """The stream after attention, and what an MLP beside it reads."""
        d, names = self.decoder, self.weights.names
        base, heads, reads = names.layer.format(number), self._of_layer(layer), not layer.appends
        new = self._latent(normed, base) if d.latent is not None else [self._stacked(normed, base, layer)]
        source = layer.keys_of if reads else number
        index = constant(np.array([sum(other.appends for other in d.layers[:source])], np.int32))
        normed_heads = d.head_norms and not layer.bare_heads
        eps = d.eps if normed_heads else None
        shared = d.latent.shared if d.latent is not None else 0
        append = Append(
            heads,
            min(d.rotated, heads.dim),
            layer.rope,
            eps,
            d.wide_head_norms,
            d.last_head_norms,
            shared,
            d.clip,
            d.rotated,
            d.norms_by_head,
            d.centered_head_norms,
            normed_heads and self.weights.find(base + names.head_norms[0], ".bias") is not None,
            d.value_norms,
            reads,
        )
        scales = self._head_norms(append, base) if normed_heads else []
        arguments = [*new, *self._places, self._rope, *scales, index, *pools]
        width = d.heads * heads.value_dim
        types = [self.type(self.rows, d.heads * heads.dim), *(pool.ty for pool in pools)]
        q, *pools = self.in_place(append, arguments, 2, types)
        relative = d.context if self._biases else 0
        attention = CachedAttention(
            heads,
            d.scale * layer.share,
            layer.window,
            d.softcap,
            relative,
            d.sinks,
            layer.chunk,
            layer.growth,
        )
        sinks = [constant(self.weights.sinks(base))] if d.sinks else []
        out = self.call(
            attention, [q, *self._places, index, *pools, *self._biases, *sinks], self.type(self.rows, width)
        )
        if d.gated_heads:
            rows = names.gate_rows
            matrix, total = [base + (names.gate or names.qkv[0])], 0 if names.gate else 2 * width
            gate = self.linear(normed, matrix, width, d.width, rows=rows, total=total)
            out = self.call(Gate(width), [out, gate], self.type(self.rows, width))
        if names.out_norm:
            out = self.norm_of(out, base + names.out_norm, width, d.eps)
        after = names.attention_norm if d.norms_after else names.attention_post_norm
        beside = self.norm(x, base + names.mlp_norm) if d.parallel_norm else normed
        x = self.added(x, out, base + names.out, width, base + after)
        return self._cross(x, base, index) if d.cross else x, pools, beside

    def _of_layer(self, layer: Layer) -> Heads:
        """Heads of a layer, which may have fewer or narrower ones than the pool."""
        h = self._heads
        dim, kv_heads = layer.dim or h.dim, layer.kv_heads or h.kv_heads
        if (dim, kv_heads) == (h.dim, h.kv_heads):
            return h
        return dataclasses.replace(h, dim=dim, kv_heads=kv_heads, room=(h.kv_heads, h.dim))

    def _head_norms(self, op: Append, base: str) -> list[Expr]:
        """Scales, and shifts where there are some, of the norms of queries and keys."""
        d, weights, arrays = self.decoder, self.weights, []
        order = np.asarray(weights.names.qkv_rows)
        first = 0
        for name, n in zip(weights.names.head_norms[: 1 + (not op.reads)], op.scales, strict=False):
            if d.plain_norms or d.plain_head_norms:
                arrays.append(np.ones(n, np.float32))
                continue
            each = range(n // op.heads.dim if "{}" in name else 1)
            full = [weights.need(base + name.format(head)) for head in each]
            scales = np.concatenate([weights.checkpoint.array(one).reshape(-1) for one in full])
            arrays.append(scales + np.float32(d.norm_offset))
            if op.shifted:
                arrays.append(weights.checkpoint.array(weights.need(base + name, ".bias")).reshape(-1))
            for number in range(len(arrays) - 1 - op.shifted, len(arrays)):
                if arrays[number].shape != (n,):
                    raise ModelError(f"{full[0]} is of {arrays[number].size} numbers, expected {n}")
                if op.by_head and order.size:  # in the order of the rows that they scale
                    arrays[number] = arrays[number][order[first : first + n] - first]
            first += n
        return [constant(array) for array in arrays]

    def _stacked(self, normed: Expr, base: str, layer: Layer) -> Expr:
        """Queries, keys and values of rows beside each other; queries alone where the layer has no keys."""
        names = self.weights.names
        matrices = [base + name for name in names.qkv]
        h, d = self._of_layer(layer), self.decoder
        if not layer.appends:
            return self.linear(normed, matrices[:1], h.heads * h.dim, d.width)
        if layer.shares_keys:
            matrices[2:] = matrices[1:2]
        total = h.width + h.heads * h.dim if d.gated_heads and not names.gate else 0
        return self.linear(normed, matrices, h.width, d.width, rows=names.qkv_rows, total=total)

    def _latent(self, normed: Expr, base: str) -> list[Expr]:
        """Queries of rows, what keys and values have of their own, and the channels that all keys share."""
        d, names, h = self.decoder, self.weights.names, self._heads
        latent = d.latent
        assert latent is not None
        to_q, q_norm, from_q, to_kv, kv_norm, from_kv = (base + name for name in names.latent)
        q_rows, kv_rows, shared_rows, all_rows = names.latent_rows
        queries, width, of_q = normed, d.width, base + names.qkv[0]
        if latent.queries:
            queries = self.linear(normed, [to_q], latent.queries, d.width)
            queries = self.norm_of(queries, q_norm, latent.queries, latent.eps)
            width, of_q = latent.queries, from_q
        queries = self.linear(queries, [of_q], h.heads * h.dim, width, rows=q_rows)
        total = latent.keys + latent.shared
        shared = self.linear(normed, [to_kv], latent.shared, d.width, rows=shared_rows, total=total)
        few = self.linear(normed, [to_kv], latent.keys, d.width, rows=kv_rows, total=total)
        few = self.norm_of(few, kv_norm, latent.keys, latent.eps)
        own = h.kv_heads * (h.dim - latent.shared + h.value_dim)
        return [queries, self.linear(few, [from_kv], own, latent.keys, rows=all_rows), shared]

    def _cross(self, x: Expr, base: str, index: Expr) -> Expr:
        """The stream after attention to the source."""
        d, names = self.decoder, self.weights.names
        width = d.heads * d.dim
        q = self.linear(self.before(x, base + names.cross_norm), [base + names.cross_q], width, d.width)
        attention = CachedAttention(self._heads, d.scale)
        out = self.call(
            attention, [q, *self._source_places, index, *self._source], self.type(self.rows, width)
        )
        return self.added(x, out, base + names.cross_out, width, base + names.cross_norm)
