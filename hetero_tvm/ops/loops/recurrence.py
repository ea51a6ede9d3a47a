"""Recurrent layers: all time steps of a cell, one after another, in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Cells, and their number of gates: i, o, f, g of an LSTM; z, r, n of a GRU; in ONNX's order."""


@dataclass(frozen=True)
class Recurrence(FusedOp):
    """States of a recurrent layer in one direction, from the input's share of its gates.

    With ``a = h @ R``, by cell::

        lstm        c = sigmoid(x_f + a_f) * c + sigmoid(x_i + a_i) * tanh(x_g + a_g)
                    h = sigmoid(x_o + a_o) * tanh(c)
        gru         n = tanh(x_n + sigmoid(x_r + a_r) * (a_n + bias))
                    h = n + sigmoid(x_z + a_z) * (h - n)
        rnn_tanh    h = tanh(x + a)
        rnn_relu    h = max(x + a, 0)

    Parameters
    ----------
    cell : one of ``GATES``.
    steps, batch, hidden : extents of Y, [T, B, H].
    reverse : the last time step is the first one.
    initial : whether the states before the first step are operands; zeros otherwise.
    lengths : whether sequences end early, where an operand says: from there on Y is zero, and C stays.  Not
        with ``initial``.

    Operands: X [T, B, gates * H], R [H, gates * H] (constant); bias [H] of a GRU; with ``initial``, h [B, H],
    and c [B, H] of an LSTM; with ``lengths``, these [B], int32.  Results: Y [T, B, H]; before it, of an LSTM,
    C [B, H], the last cell.
    """

    kind: ClassVar[str] = "recurrence"
    _OMITTED_AT_DEFAULT: ClassVar[tuple[str, ...]] = ("lengths",)

    cell: str
    steps: int
    batch: int
    hidden: int
    reverse: bool = False
    initial: bool = False
    lengths: bool = False

    @property
    def gates(self) -> int:
        """Blocks of H columns in X and R."""
        return GATES[self.cell]

    @property
    def inputs(self) -> tuple[Operand, ...]:
        columns, state = self.gates * self.hidden, (self.batch, self.hidden)
        operands = [
            Operand("X", (self.steps, self.batch, columns)),
            Operand("R", (self.hidden, columns), constant=True),
        ]
        if self.cell == "gru":
            operands.append(Operand("bias", (self.hidden,)))
        if self.initial:
            operands += [Operand(name, state) for name in ("h", "c")[: 1 + (self.cell == "lstm")]]
        if self.lengths:
            operands.append(Operand("lengths", (self.batch,), "int32"))
        return tuple(operands)

    @property
    def output(self) -> Operand:
        return Operand("Y", (self.steps, self.batch, self.hidden))

    @property
    def outputs(self) -> tuple[Operand, ...]:
        cell = (Operand("C", (self.batch, self.hidden)),) if self.cell == "lstm" else ()
        return (*cell, self.output)

    @property
    def flops(self) -> int:
        return 2 * self.steps * self.batch * self.hidden * (self.gates * self.hidden + 4 * self.gates)

    @property
    def label(self) -> str:
        shape = f"{self.steps}x{self.batch}x{self.hidden}"
        return f"{self.cell}_{shape}" + "_reverse" * self.reverse + "_lengths" * self.lengths

    def reference(self, *arrays: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        given = dict(zip((operand.name for operand in self.inputs), arrays, strict=True))
        x, r, bias = given["X"], given["R"], given.get("bias")
        zeros = np.zeros((self.batch, self.hidden), x.dtype)
        h, c = given.get("h", zeros), given.get("c", zeros)
        y = np.zeros((self.steps, self.batch, self.hidden), x.dtype)
        for t in reversed(range(self.steps)) if self.reverse else range(self.steps):
            of_x, of_h = (np.split(part, self.gates, -1) for part in (x[t], h @ r))
            sums = [a + b for a, b in zip(of_x, of_h, strict=True)]
            new = None if bias is None else (of_x[-1], of_h[-1] + bias)
            old = c
            h, c = next_state(self.cell, sums, new, h, c, _ARRAYS)
            if "lengths" in given:
                runs = (t < given["lengths"])[:, None]
                h, c = np.where(runs, h, 0), None if c is None else np.where(runs, c, old)
            y[t] = h
        return (c, y) if self.cell == "lstm" else y

    def admissible(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Operands like ``arrays`` by which kernels can be judged: R so small that states forget.

        Standard normals make a chaotic cell, in which roundings grow from step to step until nothing of the
        result is the reference's.  Sequences end early and late.
        """
        found = []
        for operand, array in zip(self.inputs, arrays, strict=True):
            if operand.name == "R":
                array = (array * array.dtype.type(0.5 * self.hidden**-0.5)).astype(array.dtype)
            elif operand.name == "lengths":
                array = np.linspace(self.steps, 0, self.batch).astype(array.dtype)
            found.append(array)
        return found

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import IRBuilder, T, s_tir
        from hetero_tvm.ops.te_workload import OP_ATTR

        builder = IRBuilder()
        with builder, T.prim_func(s_tir=True):
            buffers = {
                o.name: T.arg(o.name, T.buffer(o.shape, o.dtype)) for o in (*self.inputs, *self.outputs)
            }
            with T.serial(0, self.steps) as step:
                t = self.steps - 1 - step if self.reverse else step
                before = t + 1 if self.reverse else t - 1
                with T.serial(0, self.batch) as b, T.serial(0, self.hidden) as j:
                    self._element(buffers, step, t, before, b, j)
        function = builder.get()
        root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", function.body))
        named = function.with_body(root)
        return named.with_attr({OP_ATTR: self.to_json(), "op_pattern": 8, "tirx.noalias": True})

    def _element(self, at: dict[str, Buffer], step: Expr, t: Expr, before: Expr, b: Expr, j: Expr) -> None:
        """Write one value of the state."""
        from hetero_tvm.host.tvm import T, tirx

        x, r, y = at["X"], at["R"], at["Y"]
        zero = tirx.const(0, "float32")

        def kept(name: str, found: Buffer, *index: Expr) -> Expr:
            first = at[name][b, index[-1]] if self.initial else zero
            return tirx.if_then_else(tirx.EQ(step, 0), first, found[index])

        sums = T.alloc_buffer((self.gates,), "float32")
        with T.serial(0, self.gates) as g:
            T.buffer_store(sums, zero, [g])
            with T.serial(0, self.hidden) as k:
                state = kept("h", y, before, b, k)
                T.buffer_store(sums, sums[g] + state * r[k, g * self.hidden + j], [g])
        of_x = [x[t, b, g * self.hidden + j] for g in range(self.gates)]
        gates = [of_x[g] + sums[g] for g in range(self.gates)]
        new = (of_x[-1], sums[self.gates - 1] + at["bias"][j]) if "bias" in at else None
        cell = kept("c", at["C"], b, j) if "C" in at else None
        scalars = Functions(tirx.sigmoid, tirx.tanh, lambda v: tirx.max(v, zero), T.Bind)
        h, c = next_state(self.cell, gates, new, kept("h", y, before, b, j), cell, scalars)
        if "lengths" in at:
            runs = t < at["lengths"][b]
            h = tirx.if_then_else(runs, h, zero)
            c = None if c is None else tirx.if_then_else(runs, c, cell)
        if c is not None:
            T.buffer_store(at["C"], c, [b, j])
        T.buffer_store(y, h, [t, b, j])


@dataclass(frozen=True)
class Functions:
    """Functions of values of one kind: arrays, scalars or vectors of TensorIR.

    Attributes
    ----------
    keep : names a value that is used twice.
    """

    sigmoid: Callable[[Any], Any]
    tanh: Callable[[Any], Any]
    positive: Callable[[Any], Any]
    keep: Callable[[Any], Any]


def next_state(cell: str, sums: Sequence[Any], new: Any, h: Any, c: Any, f: Functions) -> tuple[Any, Any]:
    """The states (h, c) after one step.

    Parameters
    ----------
    cell : one of ``GATES``; only an LSTM has a ``c``.
    sums : gates before their activation, the input's and the state's share added up.
    new : of a GRU, the two shares of its last gate, that of the state with its bias.
    h, c : states before.
    """
    if cell == "lstm":
        i, o, forget = map(f.sigmoid, sums[:3])
        c = f.keep(forget * c + i * f.tanh(sums[3]))
        return o * f.tanh(c), c
    if cell == "gru":
        z, reset = map(f.sigmoid, sums[:2])
        n = f.keep(f.tanh(new[0] + reset * new[1]))
        return n + z * (h - n), None
    return (f.tanh if cell == "rnn_tanh" else f.positive)(sums[0]), None


_ARRAYS = Functions(lambda x: 0.5 + 0.5 * np.tanh(0.5 * x), np.tanh, lambda x: np.maximum(x, 0), lambda x: x)
