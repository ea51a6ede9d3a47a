"""Rows of a table by indices.

Loops: some indices at a time are loaded, counted from the end where negative, kept inside of the table,
and the DMA engine copies their rows, or parts of rows that do not fit as a whole; they leave as they
came::

    for tile of indices:   UB <- indices;  wrap (vector);  UB <- rows (gather);  DRAM <- UB

Why it is fast: rows are copied without passing through the vector unit, and those of a tile come while the
ones before leave (two versions of every buffer).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack

from hetero_tvm.host.tvm import Buffer
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu.emit import UB, At, Kernel
from hetero_tvm.schedules.npu.tensor_program.stages import Gather, OuterLoop
from hetero_tvm.schedules.npu.tensor_program.vector import width
from hetero_tvm.schedules.npu.tiles import ceil_div, even, extent_at

_MOST_PARTS = 256
"""Most parts into which a row is cut."""
_MOST_ROWS = 64
"""Most rows per tile."""


class GatherStage:
    """A :class:`Gather` in tiles of ``rows``: 0 when not one row fits, nor half of one, nor a third ..."""

    def __init__(self, stage: Gather, dtypes: tuple[str, ...], spec: NPUSpec):
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
            stage = dataclasses.replace(stage, outer=(*stage.outer, OuterLoop(parts, run, run)), run=run)
        self.stage = stage
        self.rows = even(stage.count, min(room, _MOST_ROWS)) if room else 0

    def emit(self, k: Kernel, arguments: Sequence[Buffer]) -> None:
        """Write the loops; ``arguments`` are the program's buffers."""
        stage, rows = self.stage, self.rows
        table, indices, out = (arguments[n] for n in (stage.table, stage.indices, stage.out))
        with ExitStack() as stack:
            table_base: Index = stage.base
            out_base: Index = 0
            for i, loop in [(stack.enter_context(k.loop(loop.extent)), loop) for loop in stage.outer]:
                table_base, out_base = table_base + i * loop.table_step, out_base + i * loop.out_step
            t = stack.enter_context(k.loop(ceil_div(stage.count, rows), buffers=2))
            count = extent_at(stage.count, rows, t)
            raw = k.alloc(UB, (rows,), self._dtypes[stage.indices])
            index = k.alloc(UB, (rows,), "int32")
            below = k.alloc(UB, (rows,), "int32")
            held = At(k.alloc(UB, (rows, stage.run), self._dtypes[stage.table]), lambda i, j: (i, j))
            k.load((count,), At(raw, lambda i: (i,)), At(indices, lambda i: (stage.first + t * rows + i,)))
            wrap(k, count, raw, index, below, stage.rows)
            box = (count, stage.run)
            k.gather(box, held, index, table, table_base, stage.pitch, stage.rows)
            target = At(out, lambda i, j: (out_base + (t * rows + i) * stage.out_pitch + j,))
            k.store(box, target, held)


def wrap(k: Kernel, count: Index, raw: Buffer, index: Buffer, below: Buffer, rows: int) -> None:
    """``index = raw``, counted from the end where negative and kept inside of a table of ``rows`` rows;
    ``below`` is a temporary.  Buffers in UB, ``index`` and ``below`` int32."""
    box = (count,)
    value, sign, given = (At(buffer, lambda i: (i,)) for buffer in (index, below, raw))
    k.binary("lt", box, sign, given, 0.0)
    k.binary("mul", box, sign, sign, float(rows))
    k.binary("add", box, value, given, sign)
    k.binary("max", box, value, value, 0.0)
    k.binary("min", box, value, value, float(rows - 1))
