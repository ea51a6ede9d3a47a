"""Recurrent layers: all time steps of a cell, one after another, in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc

GATES = {"lstm": 4, "gru": 3, "gru_before": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Cells, and their number of gates: i, o, f, g of an LSTM; z, r, n of a GRU; in ONNX's order."""

_FURTHER = {"lstm": ("C",), "gru_before": ("Z", "S")}
"""Results before Y, each [B, H], that a step hands to the next one, or its first half to its second."""


@dataclass(frozen=True)
class Recurrence(FusedOp):
    """States of a recurrent layer in one direction, from the input's share of its gates.

    With ``a = h @ R``, by cell::

        lstm        c = sigmoid(x_f + a_f) * c + sigmoid(x_i + a_i) * tanh(x_g + a_g)
                    h = sigmoid(x_o + a_o) * tanh(c)
        gru         n = tanh(x_n + sigmoid(x_r + a_r) * (a_n + bias))
                    h = n + sigmoid(x_z + a_z) * (h - n)
        gru_before  s = sigmoid(x_r + a_r) * h;   n = tanh(x_n + s @ R_n)
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
    C [B, H], the last cell; of a GRU that resets the state before its product, the last step's gate Z and
    reset state S, [B, H] each.
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
        further = (Operand(name, (self.batch, self.hidden)) for name in _FURTHER.get(self.cell, ()))
        return (*further, self.output)

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
        z = s = zeros
        y = np.zeros((self.steps, self.batch, self.hidden), x.dtype)
        for t in reversed(range(self.steps)) if self.reverse else range(self.steps):
            of_x, of_h = (np.split(part, self.gates, -1) for part in (x[t], h @ r))
            sums = [a + b for a, b in zip(of_x, of_h, strict=True)]
            new = None if bias is None else (of_x[-1], of_h[-1] + bias)
            old = c
            if self.cell == "gru_before":
                z, s = reset_state(sums, h, _ARRAYS)
                last = of_x[-1] + s @ r[:, 2 * self.hidden :]
                h, c = gated_state(z, _ARRAYS.tanh(last), h, _ARRAYS), None
            else:
                h, c = next_state(self.cell, sums, new, h, c, _ARRAYS)
            if "lengths" in given:
                runs = (t < given["lengths"])[:, None]
                h, c = np.where(runs, h, 0), None if c is None else np.where(runs, c, old)
            y[t] = h
        return {"lstm": (c, y), "gru_before": (z, s, y)}.get(self.cell, y)

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
                for element in (
                    (self._element,) if self.cell != "gru_before" else (self._reset, self._renewed)
                ):
                    with T.serial(0, self.batch) as b, T.serial(0, self.hidden) as j:
                        element(buffers, step, t, before, b, j)
        function = builder.get()
        root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", function.body))
        named = function.with_body(root)
        return named.with_attr({OP_ATTR: self.to_json(), "op_pattern": 8, "tirx.noalias": True})

    def _element(self, at: dict[str, Buffer], step: Expr, t: Expr, before: Expr, b: Expr, j: Expr) -> None:
        """Write one value of the state."""
        from hetero_tvm.host.tvm import T

        sums = self._sums(
            range(self.gates), lambda k: self._kept(at, "h", "Y", step, before, b, k), at["R"], j
        )
        of_x = [at["X"][t, b, g * self.hidden + j] for g in range(self.gates)]
        gates = [of_x[g] + sums[g] for g in range(self.gates)]
        new = (of_x[-1], sums[self.gates - 1] + at["bias"][j]) if "bias" in at else None
        cell = self._kept(at, "c", "C", step, None, b, j) if "C" in at else None
        state = self._kept(at, "h", "Y", step, before, b, j)
        h, c = next_state(self.cell, gates, new, state, cell, _scalars())
        if c is not None:
            c = self._running(at, t, b, c, cell)
            T.buffer_store(at["C"], c, [b, j])
        T.buffer_store(at["Y"], self._running(at, t, b, h), [t, b, j])

    def _reset(self, at: dict[str, Buffer], step: Expr, t: Expr, before: Expr, b: Expr, j: Expr) -> None:
        """Write one value of the gate and of the reset state."""
        from hetero_tvm.host.tvm import T

        sums = self._sums(range(2), lambda k: self._kept(at, "h", "Y", step, before, b, k), at["R"], j)
        gates = [at["X"][t, b, g * self.hidden + j] + sums[g] for g in range(2)]
        z, s = reset_state(gates, self._kept(at, "h", "Y", step, before, b, j), _scalars())
        T.buffer_store(at["Z"], z, [b, j])
        T.buffer_store(at["S"], s, [b, j])

    def _renewed(self, at: dict[str, Buffer], step: Expr, t: Expr, before: Expr, b: Expr, j: Expr) -> None:
        """Write one value of the state, from the gate and the whole reset state."""
        from hetero_tvm.host.tvm import T

        sums = self._sums(range(2, 3), lambda k: at["S"][b, k], at["R"], j)
        f = _scalars()
        new = f.tanh(at["X"][t, b, 2 * self.hidden + j] + sums[0])
        h = gated_state(at["Z"][b, j], new, self._kept(at, "h", "Y", step, before, b, j), f)
        T.buffer_store(at["Y"], self._running(at, t, b, h), [t, b, j])

    def _sums(self, gates: range, state: Callable[[Expr], Expr], r: Buffer, j: Expr) -> Buffer:
        """Products of a row of the state with column ``j`` of each gate."""
        from hetero_tvm.host.tvm import T, tirx

        sums = T.alloc_buffer((len(gates),), "float32")
        with T.serial(0, len(gates)) as g:
            T.buffer_store(sums, tirx.const(0, "float32"), [g])
            with T.serial(0, self.hidden) as k:
                column = (g + gates.start) * self.hidden + j
                T.buffer_store(sums, sums[g] + state(k) * r[k, column], [g])
        return sums

    def _kept(
        self, at: dict[str, Buffer], first: str, name: str, step: Expr, time: Expr | None, b: Expr, j: Expr
    ) -> Expr:
        """A value of the states before the step."""
        from hetero_tvm.host.tvm import tirx

        start = at[first][b, j] if self.initial else tirx.const(0, "float32")
        found = at[name][b, j] if time is None else at[name][time, b, j]
        return tirx.if_then_else(tirx.EQ(step, 0), start, found)

    def _running(self, at: dict[str, Buffer], t: Expr, b: Expr, new: Expr, ended: Expr | None = None) -> Expr:
        """``new`` while the sequence runs."""
        from hetero_tvm.host.tvm import tirx

        if not self.lengths:
            return new
        ended = tirx.const(0, "float32") if ended is None else ended
        return tirx.if_then_else(t < at["lengths"][b], new, ended)


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
    cell : one of ``GATES`` whose step is one product; only an LSTM has a ``c``.
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
        n = f.tanh(new[0] + reset * new[1])
        return gated_state(z, n, h, f), None
    return (f.tanh if cell == "rnn_tanh" else f.positive)(sums[0]), None


def reset_state(sums: Sequence[Any], h: Any, f: Functions) -> tuple[Any, Any]:
    """Gate z and reset state of a ``gru_before``, from its first two gates before their activation."""
    z, reset = map(f.sigmoid, sums[:2])
    return z, reset * h


def gated_state(z: Any, new: Any, h: Any, f: Functions) -> Any:
    """State of a GRU: ``z`` of the one before, the rest of the new one."""
    new = f.keep(new)
    return new + z * (h - new)


def _scalars() -> Functions:
    """Functions of scalars of TensorIR."""
    from hetero_tvm.host.tvm import T, tirx

    return Functions(tirx.sigmoid, tirx.tanh, lambda v: tirx.max(v, tirx.const(0, "float32")), T.Bind)


_ARRAYS = Functions(lambda x: 0.5 + 0.5 * np.tanh(0.5 * x), np.tanh, lambda x: np.maximum(x, 0), lambda x: x)
