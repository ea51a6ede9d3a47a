"""Loops whose number of rounds is known when they have run: the kernels at their begin and end.

A loop's body lies in line in its function, between two kernels, as if it ran once::

    states, rows, running, number = enter(states before, whether to begin, limit)
    ...                                                    the body, of states and number
    token = step(states after, rows of this round, whether to go on, states, rows, running, number, limit)
    results = leave(token, states, rows)

``step`` writes the new states over the old ones, and the rows of this round to where they belong, in the
memory that ``enter`` gave.  So every pass sees a plain graph.  When memory is planned, what lies between them
becomes a function that is called while ``running`` holds (``relax_passes/storage/rounds.py``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc

LOOP_ATTR = "hetero_tvm.loop"
"""Attribute of the kernels: JSON with the loop's name, and which of its kernels this is."""
ENTER, STEP, LEAVE = "enter", "step", "leave"

Shaped = tuple[Sequence[int], str]
"""Shape and element type of a tensor."""


def loop_of(function: Any) -> tuple[str, str] | None:
    """Name of the loop and part in it of a kernel; None for a kernel of no loop."""
    text = function.attrs.get(LOOP_ATTR) if getattr(function, "attrs", None) else None
    return None if text is None else tuple(json.loads(str(text)))


def enter(name: str, states: Sequence[Shaped], rows: Sequence[Shaped]) -> PrimFunc:
    """Kernel (states, begin, limit) -> (states, rows, running, number)."""
    from hetero_tvm.host.tvm import T, tirx

    def write(at: dict[str, Buffer]) -> None:
        for n, (shape, _) in enumerate(states):
            _copy(at[f"before_{n}"], at[f"state_{n}"], shape)
        begins = tirx.all(at["begin"][()], at["limit"][()] > tirx.const(0, "int64"))
        T.buffer_store(at["running"], begins, [])
        T.buffer_store(at["number"], tirx.const(0, "int64"), [])

    given = {f"before_{n}": state for n, state in enumerate(states)}
    made = _held(states, rows)
    return _kernel(name, ENTER, {**given, "begin": ((), "bool"), "limit": ((), "int64"), **made}, write)


def step(name: str, states: Sequence[Shaped], rows: Sequence[Shaped]) -> PrimFunc:
    """Kernel (states, rows, go on, states and rows as ``enter`` gave them, running, number, limit) -> token.

    ``rows`` are those of all rounds, [rounds, ...].
    """
    from hetero_tvm.host.tvm import T, tirx

    def write(at: dict[str, Buffer]) -> None:
        number = at["number"][()]
        for n, (shape, _) in enumerate(rows):
            place = tirx.min(number, tirx.const(shape[0] - 1, "int64"))
            _copy(at[f"new_row_{n}"], at[f"row_{n}"], shape[1:], (place,))
        for n, (shape, _) in enumerate(states):
            _copy(at[f"new_{n}"], at[f"state_{n}"], shape)
        following = number + tirx.const(1, "int64")
        T.buffer_store(at["running"], tirx.all(at["go_on"][()], following < at["limit"][()]), [])
        T.buffer_store(at["number"], following, [])
        T.buffer_store(at["token"], tirx.const(0, "int32"), [0])

    given = {f"new_{n}": state for n, state in enumerate(states)}
    given |= {f"new_row_{n}": (shape[1:], dtype) for n, (shape, dtype) in enumerate(rows)}
    given |= {"go_on": ((), "bool"), **_held(states, rows), "limit": ((), "int64")}
    return _kernel(name, STEP, {**given, "token": ((1,), "int32")}, write)


def leave(name: str, results: Sequence[Shaped]) -> PrimFunc:
    """Kernel (token, results) -> copies of the results."""

    def write(at: dict[str, Buffer]) -> None:
        for n, (shape, _) in enumerate(results):
            _copy(at[f"held_{n}"], at[f"result_{n}"], shape)

    held = {f"held_{n}": result for n, result in enumerate(results)}
    made = {f"result_{n}": result for n, result in enumerate(results)}
    return _kernel(name, LEAVE, {"token": ((1,), "int32"), **held, **made}, write)


def _held(states: Sequence[Shaped], rows: Sequence[Shaped]) -> dict[str, Shaped]:
    held: dict[str, Shaped] = {f"state_{n}": state for n, state in enumerate(states)}
    held |= {f"row_{n}": row for n, row in enumerate(rows)}
    return {**held, "running": ((), "bool"), "number": ((), "int64")}


def _kernel(name: str, part: str, parameters: dict[str, Shaped], write: Any) -> PrimFunc:
    from hetero_tvm.host.tvm import IRBuilder, T, s_tir

    builder = IRBuilder()
    with builder, T.prim_func(s_tir=True):
        buffers = {}
        for key, (shape, dtype) in parameters.items():
            buffers[key] = T.arg(key, T.buffer(tuple(shape), dtype))
        write(buffers)
    function = builder.get()
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", function.body))
    # Opaque: nothing is fused with it.
    return function.with_body(root).with_attr({"op_pattern": 8, LOOP_ATTR: json.dumps([name, part])})


def _copy(source: Buffer, target: Buffer, shape: Sequence[int], first: tuple[Expr, ...] = ()) -> None:
    """Copy a tensor, to where the indices ``first`` of the target lead."""
    from hetero_tvm.host.tvm import T

    def over(index: list[Expr]) -> None:
        if len(index) < len(shape):
            with T.serial(0, int(shape[len(index)])) as i:
                over([*index, i])
            return
        T.buffer_store(target, source[tuple(index)], [*first, *index])

    over([])
