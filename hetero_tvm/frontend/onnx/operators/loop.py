"""Loops that stay loops: the kernels at the begin and the end of a body that lies in line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero_tvm.frontend.onnx.operators.common import Inputs
from hetero_tvm.host.tvm import Expr, PrimFunc, relax
from hetero_tvm.ops.loops import rounds as loop
from hetero_tvm.ops.loops.rounds import Shaped

_FOREVER = np.iinfo(np.int64).max


class Rounds:
    """One loop of a function that is being built.

    Parameters
    ----------
    builder : takes the kernels.
    name : of the loop, which no other has.
    states : before the first round.
    limit, begins : most rounds, and whether there is any; None for a loop without the one or the other.
    rows : what all rounds give, [rounds, ...].

    Attributes
    ----------
    states : within a round.
    number, running : of the round, int64, and whether it runs, as scalars.
    """

    def __init__(
        self,
        builder: relax.BlockBuilder,
        name: str,
        states: Sequence[Expr],
        limit: Expr | None,
        begins: Expr | None,
        rows: Sequence[Shaped],
    ):
        self._builder, self._name = builder, name
        self._kinds: list[Shaped] = [_shaped(state) for state in states]
        self._row_kinds = list(rows)
        self._limit = self._scalar(relax.const(_FOREVER, "int64") if limit is None else limit)
        begin = self._scalar(relax.const(True, "bool") if begins is None else begins)
        kinds = [*self._kinds, *rows, ((), "bool"), ((), "int64")]
        made = self._call(loop.enter(name, self._kinds, rows), [*states, begin, self._limit], kinds)
        self.states, self._rows = made[: len(states)], made[len(states) : -2]
        self.running, self.number = made[-2:]

    def end(self, states: Sequence[Expr], rows: Sequence[Expr], goes_on: Expr) -> list[Expr]:
        """End a round with the states after it, its rows, and whether another follows; gives the results."""
        new = [self._own(state, n) for n, state in enumerate(states)]
        held = [*self.states, *self._rows]
        given = [*new, *rows, self._scalar(goes_on), *held, self.running, self.number, self._limit]
        function = loop.step(self._name, self._kinds, self._row_kinds)
        token = self._call(function, given, [((1,), "int32")])
        kinds = [*self._kinds, *self._row_kinds]
        return self._call(loop.leave(self._name, kinds), [*token, *held], kinds)

    def _own(self, state: Expr, n: int) -> Expr:
        """A state that is another one before the round, as a copy: it is written over."""
        others = [var for m, var in enumerate(self.states) if m != n]
        if not any(state.same_as(var) for var in others):
            return state
        (shape, dtype), copied = self._kinds[n], loop.leave(f"{self._name}/copy_{n}", [self._kinds[n]])
        unused = relax.const([0], "int32")
        return self._call(copied, [unused, state], [(shape, dtype)])[0]

    def _scalar(self, value: Expr) -> Expr:
        return self._builder.emit(relax.op.reshape(value, ())) if list(value.ty.shape) else value

    def _call(self, function: PrimFunc, given: Inputs, kinds: Sequence[Shaped]) -> list[Expr]:
        """Results of a kernel."""
        types = [relax.TensorType(tuple(shape), dtype) for shape, dtype in kinds]
        name = self._builder.add_func(function, "loop")
        call = self._builder.emit(relax.call_tir(name, given, out_ty=types if len(types) > 1 else types[0]))
        if len(types) == 1:
            return [call]
        return [self._builder.emit(relax.TupleGetItem(call, n)) for n in range(len(types))]


def _shaped(value: Expr) -> Shaped:
    return [int(extent) for extent in value.ty.shape], str(value.ty.dtype)
