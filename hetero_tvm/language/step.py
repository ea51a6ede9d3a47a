"""The step of a decoder in Relax: new tokens in, logits of some of them out, keys and values kept in pages.

``main(ids [n], positions [n], sequences [n], tables [s, w], picked [r], rope [c, t, rotated], keys, values)``
gives logits [r, vocab].  The pools of keys and values are arguments that the step writes to: the library has
no state, and whoever calls it decides how many sequences there are and where their pages lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Expr, GlobalVar, IRModule, relax, tirx
from hetero_tvm.language.decoder import Decoder, Layer
from hetero_tvm.language.weights import DecoderWeights
from hetero_tvm.ops.decoding.contracts import Append, CachedAttention, Embed, Heads, Linear, RowNorm
from hetero_tvm.ops.decoding.storage import Storage, Weight, storage_of, stored
from hetero_tvm.targets.base.compiling import StepKernels

INPUTS = ("ids", "positions", "sequences", "tables", "picked", "rope", "keys", "values")
_UNBOUNDED = 1 << 24


def build_step(
    weights: DecoderWeights, heads: Heads, kernels: StepKernels, rows: int
) -> tuple[IRModule, int]:
    """The step for at most ``rows`` new tokens at once.

    Returns
    -------
    The module, whose ``main`` calls kernels only; and bytes of weights that a step of one token reads.
    """
    return _Step(weights, heads, kernels).build(rows)


class _Step:
    def __init__(self, weights: DecoderWeights, heads: Heads, kernels: StepKernels):
        self._weights, self._heads, self._kernels = weights, heads, kernels
        self._decoder: Decoder = weights.decoder
        self._builder = relax.BlockBuilder()
        self._functions: dict[Any, GlobalVar] = {}
        self._read = 0
        self._rows, self._picked = tirx.Var("n", "int64"), tirx.Var("r", "int64")

    def build(self, rows: int) -> tuple[IRModule, int]:
        d, n, r = self._decoder, self._rows, self._picked
        s, w, c, p = (tirx.Var(name, "int64") for name in "swcp")
        keys, values = self._heads.pools(p)
        rope = (c, max(len(d.ropes), 1), max(d.rotated, 1))
        shapes = ((n,), (n,), (n,), (s, w), (r,), rope)
        dtypes = ("int32",) * 5 + ("float32",)
        types = [relax.TensorType(list(shape), dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        types += [relax.TensorType(list(shape), self._heads.cache) for shape in (keys, values)]
        inputs = [relax.Var(name, ty) for name, ty in zip(INPUTS, types, strict=True)]
        bounds = {"n": rows, "r": rows, "s": rows, "w": _UNBOUNDED, "c": _UNBOUNDED, "p": _UNBOUNDED}
        attrs = {"tir_var_upper_bound": bounds, "global_symbol": "main"}
        with self._builder.function("main", inputs, attrs=attrs):
            with self._builder.dataflow():
                ids, positions, sequences, tables, picked, rope_table, *pools = inputs
                self._places = [positions, sequences, tables]
                self._rope = rope_table
                x, head = self._embedding(ids, positions)
                for number, layer in enumerate(d.layers):
                    x, pools = self._layer(x, pools, number, layer)
                x = self._norm(x, self._weights.names.norm, picked=picked)
                logits = self._product(x, head, self._head_op(storage_of(head)), rows=r)
                result = self._builder.emit_output(logits)
            self._builder.emit_func_output(result)
        return self._builder.get(), self._read

    # parts -------------------------------------------------------------------------------------
    def _embedding(self, ids: Expr, positions: Expr) -> tuple[Expr, Weight]:
        """Rows of the stream; and the matrix of logits, which may be the same table."""
        d, weights = self._decoder, self._weights
        name, head_name = weights.names.embed, weights.head()
        tied = head_name is None
        head = weights.checkpoint.matrix(weights.need(name) if tied else head_name)
        head = stored(head, weights.storage)
        op = Embed(d.vocab, d.width, packed=tied, scale=d.embed_scale)
        if tied:
            storage = storage_of(head)
            op = Embed(d.vocab, d.width, storage, True, d.embed_scale, d.learned, d.learned_offset)
            table = [constant(array) for array in self._kernels.pack(self._head_op(storage), head)]
            self._tied = table
        else:
            plain = weights.table(name, d.vocab, d.width)
            form = "f32" if weights.storage.name == "f32" else "f16"
            storage = Storage(form)
            op = Embed(d.vocab, d.width, storage, False, d.embed_scale, d.learned, d.learned_offset)
            table = [constant(plain.astype(storage.dtype, copy=False))]
            self._tied = None
        if d.learned:
            learned = weights.table(weights.names.positions, d.learned, d.width)
            table.append(constant(learned.astype(np.float32)))
        x = self._call(op, [ids, positions, *table], self._type(self._rows, d.width))
        return x, head

    def _head_op(self, storage: Storage) -> Linear:
        d = self._decoder
        return Linear(d.vocab, d.width, storage, softcap=d.logits_softcap)

    def _layer(self, x: Expr, pools: Sequence[Expr], number: int, layer: Layer) -> tuple[Expr, list[Expr]]:
        d, names = self._decoder, self._weights.names
        base = names.layer.format(number)
        normed = self._norm(x, base + names.attention_norm)
        qkv = self._linear(normed, [base + name for name in names.qkv], self._heads.width, d.width)
        index = constant(np.array([number], np.int32))
        scales = []
        if d.head_norms:
            for name in names.head_norms:
                offset = np.float32(d.norm_offset)
                scales.append(
                    constant(self._weights.checkpoint.array(self._weights.need(base + name)) + offset)
                )
        append = Append(self._heads, d.rotated, layer.rope, d.eps if d.head_norms else None)
        arguments = [qkv, *self._places, self._rope, *scales, index, *pools]
        place = len(arguments) - len(pools)
        types = [self._type(self._rows, d.heads * d.dim), *(pool.ty for pool in pools)]
        made = relax.op.call_tir_inplace(self._function(append), arguments, [-1, place, place + 1], types)
        made = self._builder.emit(made)
        q, *pools = (self._builder.emit(relax.TupleGetItem(made, field)) for field in range(3))
        attention = CachedAttention(self._heads, d.scale, layer.window, d.softcap)
        out = self._call(
            attention, [q, *self._places, index, *pools], self._type(self._rows, d.heads * d.dim)
        )
        x = self._added(
            x,
            out,
            base + names.out,
            d.heads * d.dim,
            names.attention_post_norm and base + names.attention_post_norm,
        )
        normed = self._norm(x, base + names.mlp_norm)
        up = [base + name for name in names.up]
        inner = self._linear(normed, up, d.inner, d.width, activation=d.activation, gated=d.gated)
        post = names.mlp_post_norm and base + names.mlp_post_norm
        return self._added(x, inner, base + names.down, d.inner, post), list(pools)

    def _added(self, x: Expr, inner: Expr, name: str, k: int, post_norm: str) -> Expr:
        """``x`` plus a product, which is normalised before when the model does that."""
        width = self._decoder.width
        if not self._decoder.post_norms:
            return self._linear(inner, [name], width, k, residual=x)
        return self._norm(self._linear(inner, [name], width, k), post_norm, residual=x)

    def _linear(
        self,
        x: Expr,
        names: list[str],
        n: int,
        k: int,
        activation: str | None = None,
        gated: bool = False,
        residual: Expr | None = None,
    ) -> Expr:
        stacked = n * (1 + gated)
        weight = self._weights.matrix(names, stacked, k)
        bias = self._weights.bias(names, stacked)
        op = Linear(n, k, storage_of(weight), bias is not None, activation, gated, residual is not None)
        return self._product(x, weight, op, bias=bias, residual=residual)

    def _product(
        self,
        x: Expr,
        weight: Weight,
        op: Linear,
        rows: Expr | None = None,
        bias: np.ndarray | None = None,
        residual: Expr | None = None,
    ) -> Expr:
        shared = rows is not None and self._tied is not None
        packed = self._tied[: 2 + op.storage.zero_points if op.storage.bits else 1] if shared else None
        if packed is None:
            packed = [constant(array) for array in self._kernels.pack(op, weight)]
        self._read += round(weight.shape[0] * weight.shape[1] * op.storage.bytes_per_weight)
        arguments = [x, *packed]
        if bias is not None:
            arguments.append(constant(self._kernels.pack_bias(op, bias)))
        if residual is not None:
            arguments.append(residual)
        return self._call(op, arguments, self._type(self._rows if rows is None else rows, op.n))

    def _norm(self, x: Expr, name: str, residual: Expr | None = None, picked: Expr | None = None) -> Expr:
        d = self._decoder
        op = RowNorm(d.width, d.eps, d.centered, d.centered, residual is not None, picked is not None)
        arrays = [constant(array) for array in self._weights.norm(name, d.width)]
        rest = [value for value in (residual, picked) if value is not None]
        rows = self._rows if picked is None else self._picked
        return self._call(op, [x, *arrays, *rest], self._type(rows, d.width))

    # Relax -------------------------------------------------------------------------------------
    def _type(self, rows: Expr, width: int) -> relax.TensorType:
        return relax.TensorType([rows, width], "float32")

    def _function(self, op: Any) -> GlobalVar:
        if op not in self._functions:
            name = f"{type(op).__name__.lower()}_{len(self._functions)}"
            self._functions[op] = self._builder.add_func(
                self._kernels.emit(op).without_attr("global_symbol"), name
            )
        return self._functions[op]

    def _call(self, op: Any, arguments: list[Expr], ty: relax.TensorType) -> Expr:
        return self._builder.emit(relax.call_tir(self._function(op), arguments, ty))
