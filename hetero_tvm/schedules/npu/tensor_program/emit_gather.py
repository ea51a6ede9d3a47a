"""Rows of a table by indices.

Loops: some indices at a time are loaded, counted from the end where negative, kept inside of the table,
and the DMA engine copies their rows, or parts of rows that do not fit as a whole; they leave as they
came::

    for tile of indices:   UB <- indices;  wrap (vector);  UB <- rows (gather);  DRAM <- UB
"""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from typing import Any

from hetero_tvm.schedules.npu.emit import UB, At, Kernel
from hetero_tvm.schedules.npu.tensor_program.stages import Gather
from hetero_tvm.schedules.npu.tensor_program.vector import width
from hetero_tvm.schedules.npu.tiles import ceil_div, even, extent_at

_MOST_PARTS = 256
"""Of one row."""


class GatherStage:
    """One :class:`Gather`; ``rows`` is 0 when not one row fits, nor half of one, nor a third ..."""

    def __init__(self, stage: Gather, dtypes: tuple[str, ...], spec: Any):
        self._dtypes = dtypes
        for parts in range(1, _MOST_PARTS + 1):
            run = stage.run // parts
            each = 2 * (run * width(dtypes[stage.table]) + width(dtypes[stage.indices]) + 8)
            room = (spec.scratchpad("ub") * 7 // 8 - 512) // each
            if room and run * parts == stage.run:
                break
        else:
            room = 0
        if room and parts > 1:
            stage = dataclasses.replace(stage, outer=(*stage.outer, (parts, run, run)), run=run)
        self.stage = stage
        self.rows = even(stage.count, min(room, 64)) if room else 0

    def emit(self, k: Kernel, arguments: list[Any]) -> None:
        stage, rows = self.stage, self.rows
        dtype = self._dtypes[stage.table]
        table, indices, out = (arguments[n] for n in (stage.table, stage.indices, stage.out))
        with ExitStack() as stack:
            at = [stack.enter_context(k.loop(n)) for n, _, _ in stage.outer]
            from_, to = stage.base, 0
            for i, (_, a, b) in zip(at, stage.outer, strict=True):
                from_, to = from_ + i * a, to + i * b
            t = stack.enter_context(k.loop(ceil_div(stage.count, rows), buffers=2))
            count = extent_at(stage.count, rows, t)
            raw = k.alloc(UB, (rows,), self._dtypes[stage.indices])
            index = k.alloc(UB, (rows,), "int32")
            below = k.alloc(UB, (rows,), "int32")
            held = k.alloc(UB, (rows, stage.run), dtype)
            k.load((count,), At(raw, lambda i: (i,)), At(indices, lambda i: (stage.first + t * rows + i,)))
            wrap(k, count, raw, index, below, stage.rows)
            k.gather(
                (count, stage.run),
                At(held, lambda i, j: (i, j)),
                index,
                table,
                from_,
                stage.pitch,
                stage.rows,
            )
            k.store(
                (count, stage.run), At(out, lambda i, j: (to + (t * rows + i) * stage.out_pitch + j,)),
                At(held, lambda i, j: (i, j)),
            )  # fmt: skip


def wrap(k: Kernel, count: Any, raw: Any, index: Any, below: Any, rows: int) -> None:
    """``index = raw``, counted from the end where negative and kept inside of a table of ``rows`` rows;
    ``below`` is a temporary.  Buffers in UB, ``index`` and ``below`` int32."""
    box = (count,)
    value, sign, given = (At(buffer, lambda i: (i,)) for buffer in (index, below, raw))
    k.binary("lt", box, sign, given, 0.0)
    k.binary("mul", box, sign, sign, float(rows))
    k.binary("add", box, value, given, sign)
    k.binary("max", box, value, value, 0.0)
    k.binary("min", box, value, value, float(rows - 1))
