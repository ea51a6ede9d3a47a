"""Recurrent layers of TensorFlow Lite as Scan, whose rounds stay a loop.

States are variables of a file, which keep their values from run to run until they are reset; here each run
begins with zeros, as the Keras layers that such files come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from hetero_tvm.frontend.nodes import Untranslatable
from hetero_tvm.frontend.tflite.op import Op

_LAYER_NORMS = range(20, 24)
"""Operands that scale the gates."""


def lstm(op: Op) -> None:
    """``UNIDIRECTIONAL_SEQUENCE_LSTM``: gates i, f, c, o, with peepholes, projection and bounds."""
    if op.option("DiagonalRecurrentTensors", False) or any(map(op.has, _LAYER_NORMS)):
        raise Untranslatable("with normalized gates or diagonal weights")
    gates = [gate for gate in range(4) if op.has(1 + gate)]  # without the first, it is what f leaves
    units, out = op.shape(2)[0], op.shape(6)[1]
    turned = op.emit("Concat", *(op.weights(5 + gate, [1, 0]) for gate in gates), axis=1)
    project = op.weights(16, [1, 0]) if op.has(16) else None
    cell, share = (_bounds(op, name) for name in ("CellClip", "ProjClip"))

    def step(row: str, h: str, c: str) -> Sequence[str]:
        sums = op.emit("Add", row, op.emit("MatMul", h, turned))
        parts = op.several("Split", sums, count=len(gates), axis=1, num_outputs=len(gates))
        of = dict(zip(gates, parts, strict=True))

        def gate(place: int, hole: int, state: str) -> str:
            seen = of[place]
            if op.has(hole):
                seen = op.emit("Add", seen, op.emit("Mul", state, op.weights(hole)))
            return op.emit("Sigmoid", seen)

        forget = gate(1, 10, c)
        take = gate(0, 9, c) if 0 in of else op.emit("Sub", op.const(1, "float32"), forget)
        new = op.emit("Mul", take, op.activated(of[2]))
        c = cell(op.emit("Add", op.emit("Mul", forget, c), new))
        h = op.emit("Mul", gate(3, 11, c), op.activated(c))
        if project is not None:
            h = op.emit("MatMul", h, project)
            h = share(op.emit("Add", h, op.bias(17)) if op.has(17) else h)
        return h, c, h

    weights = [op.weights(1 + gate, [1, 0]) for gate in gates]
    biases = [op.bias(12 + gate) for gate in gates]
    _layer(op, weights, biases, step, [(18, out), (19, units)])


def rnn(op: Op) -> None:
    """``UNIDIRECTIONAL_SEQUENCE_RNN``."""
    turned = op.weights(2, [1, 0])

    def step(row: str, h: str) -> Sequence[str]:
        h = op.activated(op.emit("Add", row, op.emit("MatMul", h, turned)))
        return h, h

    _layer(op, [op.weights(1, [1, 0])], [op.bias(3)], step, [(4, op.shape(1)[0])])


def _layer(
    op: Op,
    weights: Sequence[str],
    biases: Sequence[str],
    step: Callable[..., Sequence[str]],
    states: Sequence[tuple[int, int]],
) -> None:
    """Products of all rows with the input's weights, then the steps; ``states``: operands, widths."""
    if op.tensor().dtype != "float32":
        raise Untranslatable(f"of {op.tensor().dtype}")
    is_timed = bool(op.option("TimeMajor", False))
    batch = op.shape()[1 if is_timed else 0]
    x = op.value()
    x = x if is_timed else op.emit("Transpose", x, perm=[1, 0, 2])
    whole, bias = op.emit("Concat", *weights, axis=1), op.emit("Concat", *biases, axis=0)
    rows = op.emit("Add", op.emit("MatMul", x, whole), bias)
    first = []
    for operand, width in states:
        shape = [batch, width]
        known = op.has_value(operand)
        first.append((op.value(operand) if known else op.const(np.zeros(shape), "float32"), shape))
    found = op.scanned(rows, [batch, len(weights) * op.shape(2)[0]], first, step)
    op.give(found if is_timed else op.emit("Transpose", found, perm=[1, 0, 2]))


def _bounds(op: Op, name: str) -> Callable[[str], str]:
    """Bounds of a state: an option of 0 sets none."""
    most = float(op.option(name, 0.0))
    return lambda x: op.clipped(x, -most, most) if most > 0 and math.isfinite(most) else x


RECURRENCE: dict[str, Callable[[Op], None]] = {
    "UNIDIRECTIONAL_SEQUENCE_LSTM": lstm,
    "UNIDIRECTIONAL_SEQUENCE_RNN": rnn,
}
"""Translations of recurrent layers."""
