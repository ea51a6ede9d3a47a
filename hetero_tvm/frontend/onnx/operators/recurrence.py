"""RNN, GRU and LSTM that stay one operator: a product for the input of all steps, and a loop over time."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_tvm.frontend.onnx.graph.body import as_text
from hetero_tvm.frontend.onnx.operators.common import Inputs, static_shape
from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Expr, relax, tvm
from hetero_tvm.ops.loops.recurrence import Recurrence

RECURRENT = frozenset({"RNN", "GRU", "LSTM"})
"""ONNX's recurrent operators, of which only the form of ``Recurrence`` arrives here."""

_REVERSED = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def recurrent_layer(builder: relax.BlockBuilder, kind: str, inputs: Inputs, attrs: dict[str, Any]) -> Expr:
    """Results Y [T, D, B, H], the last states [D, B, H], and of an LSTM the last cells, as a tuple.

    Parameters
    ----------
    builder : takes the kernels.
    kind : ONNX's operator.
    inputs : X [T, B, F], W [D, gates * H, F], R, biases, lengths (all T), states; None for what is left out.
    """
    given = [*inputs, *[None] * 8][:8]
    x, w, r, b, lengths = given[:5]
    if lengths is not None and isinstance(lengths, tvm.ir.GenericConst):
        lengths = None  # all T: else the node would not be here
    steps, batch, features = static_shape(x) or ()
    weights = _array(r)
    hidden = weights.shape[-1]
    flat = builder.emit(relax.op.reshape(x, [steps * batch, features]))
    names = [as_text(name).lower() for name in attrs.get("activations", ())]
    results = []
    for d, reverse in enumerate(_REVERSED[as_text(attrs.get("direction", "forward"))]):
        cell = f"rnn_{names[d] if names else 'tanh'}" if kind == "RNN" else kind.lower()
        if kind == "GRU" and not attrs.get("linear_before_reset"):
            cell = "gru_before"
        states = [_state(state, d) for state in given[5 : 5 + 1 + (kind == "LSTM")]]
        initial = any(state is not None for state in states)
        op = Recurrence(cell, steps, batch, hidden, reverse, initial, lengths is not None)
        of_input, inside = _biases(cell, None if b is None else _array(b)[d], op)
        y = relax.op.matmul(flat, _turned(w, d))
        if of_input is not None:
            y = relax.op.add(y, constant(of_input))
        gates = relax.op.reshape(builder.emit(y), [steps, batch, op.gates * hidden])
        operands = [builder.emit(gates), constant(np.ascontiguousarray(weights[d].T))]
        operands += [constant(inside)] * (cell == "gru")
        if initial:
            zeros = np.zeros((batch, hidden), np.float32)
            operands += [constant(zeros) if state is None else builder.emit(state) for state in states]
        if lengths is not None:
            operands.append(lengths)
        types = [relax.TensorType(o.shape, o.dtype) for o in op.outputs]
        function = builder.add_func(op.workload(), op.label)
        call = relax.call_tir(function, operands, out_ty=types if len(types) > 1 else types[0])
        results.append(_results(builder, builder.emit(call), op, lengths))
    axes = (1, 0, 0)[: len(results[0])]
    return relax.Tuple(
        [_joined(parts, axis) for parts, axis in zip(zip(*results, strict=True), axes, strict=True)]
    )


def _results(builder: relax.BlockBuilder, call: Expr, op: Recurrence, lengths: Expr | None) -> list[Expr]:
    """Y [T, 1, B, H], the last state [1, B, H], and the last cell."""
    cell = []
    if len(op.outputs) > 1:
        parts, last = call, len(op.outputs) - 1
        call = builder.emit(relax.TupleGetItem(parts, last))
        if op.cell == "lstm":
            cell = [relax.op.expand_dims(builder.emit(relax.TupleGetItem(parts, 0)), 0)]
    if lengths is None or op.reverse:
        last = 0 if op.reverse else op.steps - 1
        state = relax.op.strided_slice(call, [0], [last], [last + 1])
    else:  # of each sequence the state at its end; one without any has zeros at its start
        ends = builder.emit(relax.op.subtract(lengths, relax.const(1, "int32")))
        ends = builder.emit(relax.op.maximum(ends, relax.const(0, "int32")))
        ends = builder.emit(relax.op.reshape(relax.op.astype(ends, "int64"), (1, op.batch, 1)))
        places = builder.emit(relax.op.broadcast_to(ends, (1, op.batch, op.hidden)))
        state = relax.op.gather_elements(call, places, 0)
    return [relax.op.expand_dims(call, 1), state, *cell]


def _joined(parts: tuple[Expr, ...], axis: int) -> Expr:
    return parts[0] if len(parts) == 1 else relax.op.concat(list(parts), axis)


def _array(value: Expr) -> np.ndarray:
    return np.asarray(value.value.numpy())


def _turned(w: Expr, d: int) -> Expr:
    """Weights of the input in direction ``d``, [F, gates * H]."""
    if isinstance(w, tvm.ir.GenericConst):
        return constant(np.ascontiguousarray(_array(w)[d].T))
    return relax.op.permute_dims(relax.op.squeeze(relax.op.strided_slice(w, [0], [d], [d + 1]), [0]))


def _state(value: Expr | None, d: int) -> Expr | None:
    """A state before the first step in direction ``d``, [B, H]; None for zeros."""
    if value is None or (isinstance(value, tvm.ir.GenericConst) and not _array(value).any()):
        return None
    return relax.op.squeeze(relax.op.strided_slice(value, [0], [d], [d + 1]), [0])


def _biases(cell: str, b: np.ndarray | None, op: Recurrence) -> tuple[np.ndarray | None, np.ndarray]:
    """Sum of the biases, [gates * H] (None for none), and the one inside of a GRU's last gate, [H]."""
    rows = op.gates * op.hidden
    if b is None:
        return None, np.zeros(op.hidden, np.float32)
    state = b[rows:].copy()
    inside = state[rows - op.hidden :].copy()
    if cell == "gru":
        state[rows - op.hidden :] = 0
    return b[:rows] + state, inside
