"""Models whose layers see several streams of rows, in Relax: AltUp (Baykal and others, 2023) as Gemma 3n has
it.

Every layer predicts all streams, computes the first, and corrects all by what that has become.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hetero_tvm.errors import ModelError
from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Expr, relax
from hetero_tvm.language.layers import LayerBuilder
from hetero_tvm.ops.decoding.contracts import Linear, Multiply, RowNorm
from hetero_tvm.ops.decoding.storage import QuantizedWeight, storage_of, stored
from hetero_tvm.ops.decoding.streams import Mix, Rescale


class StreamLayers:
    """The streams of one step.

    Parameters
    ----------
    layers : what emits its calls.
    first : rows of the first stream.
    """

    def __init__(self, layers: LayerBuilder, first: Expr):
        self._layers, self._count = layers, layers.decoder.streams
        names = layers.weights.names.streams
        self._into, self._out_of, *self._of_layer = names
        self._streams = [
            first,
            *(self._projected(first, first, self._into, i) for i in range(1, self._count)),
        ]

    def predicted(self, base: str) -> list[Expr]:
        """The streams as a layer predicts them; it computes the first."""
        layers, count = self._layers, self._count
        _, _, prediction, *_ = self._names(base)
        weight = self._array(prediction + ".weight", (count * count, count))
        shares = self._shares(self._streams[0], base, weight, np.eye(count, dtype=np.float32).reshape(-1))
        return self._mixed(Mix(layers.decoder.width, count, count), [*self._streams, shares])

    def correct(self, predicted: Sequence[Expr], first: Expr, inputs: Expr, number: int) -> None:
        """Correct the streams by what a layer, of this number, made of the first."""
        layers, d, count = self._layers, self._layers.decoder, self._count
        base = layers.weights.names.layer.format(number)
        weight = self._array(self._names(base)[3] + ".weight", (count, count))
        # The first is P + (F - P) (1 + c), the others P[i] + (F - P) (1 + c[i]) + what the layer adds.
        shares = self._shares(first, base, np.stack([-weight[0], weight[0]]), np.array([0, 1], np.float32))
        (corrected,) = self._mixed(Mix(d.width, 2, 1), [predicted[0], first, shares])
        added = self._of_inputs(corrected, inputs, base, number)
        rest = count - 1
        factors = np.zeros((rest, rest + 3, count), np.float32)
        bias = np.zeros((rest, rest + 3), np.float32)
        bias[:, :rest] = np.eye(rest)
        factors[:, rest], factors[:, rest + 1] = -weight[1:], weight[1:]
        bias[:, rest:] = [-1, 1, 1]
        shares = self._shares(first, base, factors.reshape(-1, count), bias.reshape(-1))
        others = [*predicted[1:], predicted[0], first, added]
        self._streams = [corrected, *self._mixed(Mix(d.width, rest + 3, rest), [*others, shares])]

    def merged(self) -> Expr:
        """The mean of all streams."""
        first, *rest = self._streams
        parts = [first]
        for number, stream in enumerate(rest, 1):
            parts.append(self._projected(stream, first, self._out_of, number))
        share = (1.0 / self._count,) * self._count
        return self._mixed(Mix(self._layers.decoder.width, self._count, 1, share), parts)[0]

    # parts -------------------------------------------------------------------------------------
    def _names(self, base: str) -> list[str]:
        return [base + name for name in self._of_layer]

    def _projected(self, stream: Expr, like: Expr, name: str, number: int) -> Expr:
        """A stream behind a matrix, with the mean square of another."""
        layers, width = self._layers, self._layers.decoder.width
        made = layers.linear(stream, [name.format(number - 1)], width, width)
        return layers.call(Rescale(width), [made, like], layers.type(layers.rows, width))

    def _shares(self, rows: Expr, base: str, weight: np.ndarray, bias: np.ndarray) -> Expr:
        """Shares that streams are mixed by: a small matrix times what a router says of rows."""
        layers, d = self._layers, self._layers.decoder
        norm, router, *_ = self._names(base)
        scale = self._array(norm + ".weight", (d.width,)) / np.float32(d.width)
        normed = layers.call(
            RowNorm(d.width, d.eps), [rows, constant(scale)], layers.type(layers.rows, d.width)
        )
        matrix = self._array(router + ".weight", (self._count, d.width))
        kinds = layers.product(normed, matrix, Linear(self._count, d.width, activation="tanh"))
        weight = np.ascontiguousarray(weight)
        return layers.product(kinds, weight, Linear(len(weight), self._count, bias=True), bias=bias)

    def _of_inputs(self, first: Expr, inputs: Expr, base: str, number: int) -> Expr:
        """Rows that a layer makes of what it has of each token beside the streams, for all but the first."""
        layers, d = self._layers, self._layers.decoder
        weights, width = layers.weights, d.layer_inputs
        gate, out, norm = (base + name for name in weights.names.layer_inputs[3:])
        matrix = weights.checkpoint.matrix(weights.need(gate))
        if d.scaled_streams:
            if isinstance(matrix, QuantizedWeight):
                matrix = matrix.dequantized()
            matrix = matrix * self._array(self._names(base)[4], (d.width,))
        if matrix.shape != (width, d.width):
            raise ModelError(f"{gate} is {list(matrix.shape)}, expected [{width}, {d.width}]")
        weight = stored(matrix, weights.storage)
        op = Linear(width, d.width, storage_of(weight), activation=d.activation)
        inner = layers.product(first, weight, op)
        op = Multiply(width, width * len(d.layers), width * number)
        inner = layers.call(op, [inner, inputs], layers.type(layers.rows, width))
        return layers.norm(layers.linear(inner, [out], d.width, width), norm)

    def _mixed(self, op: Mix, arguments: list[Expr]) -> list[Expr]:
        layers = self._layers
        types = [layers.type(layers.rows, op.width)] * op.made
        made = layers.builder.emit(relax.call_tir(layers.function(op), arguments, types))
        if op.made == 1:
            return [made]
        return [layers.builder.emit(relax.TupleGetItem(made, number)) for number in range(op.made)]

    def _array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        weights = self._layers.weights
        full = weights.need(name, "")
        array = weights.checkpoint.array(full)
        if array.shape != shape:
            raise ModelError(f"{full} is {list(array.shape)}, expected {list(shape)}")
        return array


def with_low_rank(layers: LayerBuilder, x: Expr, normed: Expr, base: str) -> Expr:
    """The stream behind attention together with what a product of low rank makes of the rows that attention
    reads (LAuReL); divided by the root of 2."""
    d, names = layers.decoder, layers.weights.names
    left, right, norm = (base + name for name in names.low_rank)
    few = layers.linear(normed, [left], d.low_rank, d.width)
    beside = layers.norm(layers.linear(few, [right], d.width, d.low_rank), norm, residual=normed)
    op = Mix(d.width, 2, 1, (math.sqrt(0.5),) * 2)
    return layers.call(op, [x, beside], layers.type(layers.rows, d.width))
