"""Layers that keep a state of a text, in Relax: short convolutions (LFM2), Mamba, Mamba 2,
and linear attention by the gated delta rule (Qwen3-Next, OLMo Hybrid, Kimi Linear)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero_tvm.errors import ModelError
from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Expr
from hetero_tvm.language.families.decoder import Recurrence
from hetero_tvm.language.layers import LayerBuilder
from hetero_tvm.language.weights import DecoderWeights
from hetero_tvm.ops.decoding.contracts import RowNorm
from hetero_tvm.ops.decoding.states import Columns, DeltaScan, GatedNorm, Scan, ShortConvolution
from hetero_tvm.ops.decoding.storage import Storage


class StateLayer:
    """One such layer.

    Parameters
    ----------
    layers : what emits its calls.
    pool : numbers of all states of a text.
    base : what its tensors' names begin with.
    places : positions and sequences of the rows, slots of the sequences.
    first : number in the pool with which its state begins.

    Attributes
    ----------
    out : name of the matrix behind it.
    """

    def __init__(
        self,
        layers: LayerBuilder,
        recurrence: Recurrence,
        pool: int,
        base: str,
        places: Sequence[Expr],
        first: int,
    ):
        self._layers, self._recurrence, self._pool = layers, recurrence, pool
        self._base, self._places, self._first = base, list(places), first
        self.out = base + layers.weights.names.recurrent_out

    def build(self, normed: Expr, states: Expr) -> tuple[Expr, Expr]:
        """Rows that the matrix behind the layer reads, and the pool of states, written to."""
        kinds = {"convolution": self._convolution, "mamba": self._mamba, "mamba2": self._mamba2}
        kinds |= {"delta": self._delta, "channel_delta": self._channel_delta}
        return kinds[self._recurrence.kind](normed, states)

    def _convolution(self, normed: Expr, states: Expr) -> tuple[Expr, Expr]:
        r = self._recurrence
        rows = self._linear(normed, "in_proj", 3 * r.inner, self._layers.decoder.width)
        # The file has B, C and X beside each other.
        return self._convolved(rows, Columns(3 * r.inner), "conv", states, gated=True)

    def _mamba(self, normed: Expr, states: Expr) -> tuple[Expr, Expr]:
        r, layers = self._recurrence, self._layers
        pair = self._linear(normed, "in_proj", 2 * r.inner, layers.decoder.width)
        x, states = self._convolved(pair, Columns(2 * r.inner), "conv1d", states, activation="silu")
        few = self._part(x, 0, r.steps)
        if r.eps:
            few = self._norm(few, "dt_layernorm", r.steps)
            parts = [self._part(x, r.steps + n * r.state, r.state) for n in range(2)]
            b, c = (self._norm(part, f"{n}_layernorm", r.state) for n, part in zip("bc", parts, strict=True))
            columns = [Columns(r.state)] * 2
        else:
            b = c = self._part(x, r.steps, 2 * r.state)
            columns = [Columns(2 * r.state, first) for first in (0, r.state)]
        steps = layers.linear(few, [self._base + "dt_proj"], r.inner, r.steps, weights=self._unrounded)
        whole = Columns(r.inner)
        gate = Columns(2 * r.inner, r.inner)
        op = Scan(1, r.inner, r.state, whole, *columns, whole, self._pool, by_channel=True, gate=gate)
        rates = -np.exp(self._array("A_log", (r.inner, r.state)).T)
        constants = [np.ascontiguousarray(rates), self._array("D", (r.inner,))]
        return self._scanned(op, [x, b, c, steps, pair], constants, states)

    def _mamba2(self, normed: Expr, states: Expr) -> tuple[Expr, Expr]:
        r, layers = self._recurrence, self._layers
        total, shared = r.inner + r.convolved + r.heads, r.groups * r.state
        all_parts = self._linear(normed, "in_proj", total, layers.decoder.width)
        x, states = self._convolved(all_parts, Columns(total, r.inner), "conv1d", states, activation="silu")
        x_b_c = [Columns(r.convolved, first) for first in (0, r.inner, r.inner + shared)]
        steps = Columns(total, total - r.heads)
        gate = None if r.eps else Columns(total)
        op = Scan(r.heads, r.inner // r.heads, r.state, *x_b_c, steps, self._pool, r.groups, gate=gate)
        constants = [self._array(name, (r.heads,)) for name in ("A_log", "D", "dt_bias")]
        constants[0] = -np.exp(constants[0])
        rows = [x, x, x, all_parts, *([] if gate is None else [all_parts])]
        y, states = self._scanned(op, rows, constants, states)
        if gate is not None:
            return y, states
        norm = GatedNorm(r.inner, r.groups, r.eps, Columns(total), r.before)
        scale = constant(self._array("norm.weight", (r.inner,)))
        return layers.call(norm, [y, all_parts, scale], layers.type(layers.rows, r.inner)), states

    def _delta(self, normed: Expr, states: Expr) -> tuple[Expr, Expr]:
        r, layers = self._recurrence, self._layers
        names, width = layers.weights.names, layers.decoder.width
        total = r.convolved + r.inner
        wide, few_names = (
            [self._base + name for name in n] for n in (names.recurrent_in, names.recurrent_few)
        )
        all_parts = layers.linear(normed, wide, total, width, rows=names.recurrent_rows)
        rows, halves = names.recurrent_few_rows, self._unrounded
        few = layers.linear(normed, few_names, 2 * r.heads, width, rows=rows, weights=halves)
        qkv, states = self._convolved(all_parts, Columns(total), "conv1d", states, activation="silu")
        columns = [Columns(2 * r.heads, first) for first in (0, r.heads)]
        reach = 2.0 if r.doubled else 1.0
        op = DeltaScan(r.heads, r.groups, r.state, r.inner // r.heads, *columns, self._pool, reach=reach)
        constants = [-np.exp(self._array("A_log", (r.heads,))), self._array("dt_bias", (r.heads,))]
        y, states = self._scanned(op, [qkv, few, few], constants, states)
        return self._gated_norm(y, all_parts, Columns(total, r.convolved)), states

    def _channel_delta(self, normed: Expr, states: Expr) -> tuple[Expr, Expr]:
        r, layers = self._recurrence, self._layers
        names, width, halves = layers.weights.names, layers.decoder.width, self._unrounded
        wide = [self._base + name for name in names.recurrent_in]
        qkv = layers.linear(normed, wide, r.convolved, width)
        dim, keys = r.inner // r.heads, r.heads * r.state
        shares = layers.linear(normed, [self._base + "b_proj"], r.heads, width, weights=halves)
        into, out_of = (self._base + name for name in names.recurrent_few)
        few = layers.linear(normed, [into], dim, width, weights=halves)
        steps = layers.linear(few, [out_of], keys, dim, weights=halves)
        few = layers.linear(normed, [self._base + "g_a_proj"], dim, width)
        gate = layers.linear(few, [self._base + "g_b_proj"], r.inner, dim)
        qkv, states = self._convolved(qkv, Columns(r.convolved), "conv1d", states, activation="silu")
        columns = [Columns(r.heads), Columns(keys)]
        op = DeltaScan(r.heads, r.groups, r.state, dim, *columns, self._pool, by_channel=True)
        rates = -np.exp(self._array("A_log", (1, 1, r.heads, 1), (r.heads,)).reshape(-1))
        constants = [np.repeat(rates, r.state), self._array("dt_bias", (keys,))]
        y, states = self._scanned(op, [qkv, shares, steps], constants, states)
        return self._gated_norm(y, gate, Columns(r.inner), sigmoid=True), states

    def _gated_norm(self, y: Expr, gate: Expr, columns: Columns, sigmoid: bool = False) -> Expr:
        """Rows normalised head by head, times what a gate lets through."""
        r, layers = self._recurrence, self._layers
        norm = GatedNorm(r.inner, r.heads, r.eps, columns, True, sigmoid)
        name = layers.weights.names.recurrent_norm + ".weight"
        scale = constant(np.tile(self._array(name, (r.inner // r.heads,)), r.heads))
        return layers.call(norm, [y, gate, scale], layers.type(layers.rows, r.inner))

    # parts -------------------------------------------------------------------------------------
    def _convolved(
        self, rows: Expr, columns: Columns, name: str, states: Expr, **options: Any
    ) -> tuple[Expr, Expr]:
        r, layers = self._recurrence, self._layers
        weight = self._filters(f"{name}.weight")
        bias = layers.weights.find(self._base + name, ".bias")
        op = ShortConvolution(r.convolved, r.size, columns, self._pool, bias is not None, **options)
        constants = [constant(np.ascontiguousarray(weight[:, 0].T))]
        if bias is not None:
            constants.append(constant(self._array(f"{name}.bias", (r.convolved,))))
        types = [layers.type(layers.rows, r.convolved), states.ty]
        y, states = layers.in_place(op, [rows, *constants, *self._at(self._first), states], 1, types)
        return y, states

    def _filters(self, name: str) -> np.ndarray:
        """Filters of all channels [channels, 1, rows], which checkpoints may have in several arrays."""
        r, layers = self._recurrence, self._layers
        parts = layers.weights.names.recurrent_filters
        if not parts or layers.weights.find(self._base + name, "") is not None:
            return self._array(name, (r.convolved, 1, r.size))
        # transformers writes three arrays of equal size, whatever queries, keys and values have of it.
        names = [layers.weights.need(f"{self._base}{part}") for part in parts]
        whole = np.concatenate([layers.weights.checkpoint.array(one) for one in names])
        if whole.shape != (r.convolved, 1, r.size):
            expected = [r.convolved, 1, r.size]
            raise ModelError(f"{', '.join(names)} are {list(whole.shape)} together, expected {expected}")
        return whole

    def _scanned(
        self, op: Scan | DeltaScan, rows: list[Expr], constants: list[np.ndarray], states: Expr
    ) -> tuple[Expr, Expr]:
        """The scan, whose state lies behind that of the convolution."""
        r, layers = self._recurrence, self._layers
        places = self._at(self._first + (r.size - 1) * r.convolved)
        arguments = [*rows, *map(constant, constants), *places, states]
        y, states = layers.in_place(op, arguments, 1, [layers.type(layers.rows, r.inner), states.ty])
        return y, states

    def _at(self, first: int) -> list[Expr]:
        return [*self._places, constant(np.array([first], np.int32))]

    def _linear(self, x: Expr, name: str, n: int, k: int) -> Expr:
        return self._layers.linear(x, [self._base + name], n, k)

    def _part(self, x: Expr, first: int, count: int) -> Expr:
        """Some of what steps, B and C are made by."""
        r = self._recurrence
        rows, total = tuple(range(first, first + count)), r.steps + 2 * r.state
        names, halves = [self._base + "x_proj"], self._unrounded
        return self._layers.linear(x, names, count, r.inner, weights=halves, rows=rows, total=total)

    @property
    def _unrounded(self) -> DecoderWeights:
        """The weights, of which the small matrices that say what a state forgets are not rounded to integers:
        their errors add up from row to row."""
        weights = self._layers.weights
        return dataclasses.replace(weights, storage=Storage("f16")) if weights.storage.bits else weights

    def _norm(self, x: Expr, name: str, width: int) -> Expr:
        """Rows normalised, by the scales of this name where there are some."""
        layers, eps = self._layers, self._recurrence.eps
        if layers.weights.find(self._base + name):
            return layers.norm_of(x, self._base + name, width, eps)
        ones = constant(np.ones(width, np.float32))
        return layers.call(RowNorm(width, eps), [x, ones], layers.type(layers.rows, width))

    def _array(self, name: str, *shapes: tuple[int, ...]) -> np.ndarray:
        """An array of one of these shapes."""
        weights = self._layers.weights
        full = weights.need(self._base + name, "")
        array = weights.checkpoint.array(full)
        if array.shape not in shapes:
            raise ModelError(f"{full} is {list(array.shape)}, expected {list(shapes[0])}")
        return array
