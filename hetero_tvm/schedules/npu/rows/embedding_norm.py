"""Embeddings looked up, added and normalized.

Loops: indices are loaded and brought into their tables for many rows at once; then, some rows at a time,
the DMA engine gathers the rows of every table straight into the tiles that the vector unit works on::

    for chunk of rows:     UB <- indices;  wrap (vector)
      for tile of rows:    UB <- rows (gather), added (load);  add, norm (vector);  DRAM <- UB

Why it is fast: an embedding comes on chip once and leaves once, and of a chunk only the first tile waits
for its indices; the gathers of a tile run beside the passes over the one before (two versions of every
buffer).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from hetero_tvm.host.tvm import Buffer, PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.ops.embedding_norm import EmbeddingNorm
from hetero_tvm.schedules.base import Packer, Point
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu.base import stored_as
from hetero_tvm.schedules.npu.emit import DRAM, L1, UB, At, Kernel
from hetero_tvm.schedules.npu.rows.normalization import emit_normalization
from hetero_tvm.schedules.npu.rows.row_tiles import RowSpace, tile_rows
from hetero_tvm.schedules.npu.tensor_program.emit_gather import wrap
from hetero_tvm.schedules.npu.tiles import ceil_div, even, extent_at

_CHUNK = 512
"""Most rows whose indices lie in the unified buffer at once."""


@dataclass(frozen=True)
class _Table:
    """Parameters of one lookup: ``count`` indices into a table of ``rows`` rows."""

    indices: Buffer
    count: int
    table: Buffer
    rows: int


class NpuEmbeddingNormSpace(RowSpace):
    """``ops.EmbeddingNorm`` whose indices and added rows repeat by whole sequences."""

    name = "npu.embedding_norm"
    version = 1
    operator = EmbeddingNorm

    def unsupported(self, op: EmbeddingNorm, machine: NpuMachine) -> str | None:
        if op.norm.special:
            return op.norm.special
        if not op.lookups:
            return "nothing is looked up"
        if any(stored_as(x.dtype, machine.dtype) != "int32" for x in op.lookups):
            return "indices are not int32 or int64"
        if any(x.rows > 1 << 24 for x in op.lookups):
            return "a table has more rows than float32 counts"
        if _periods(op) is None:
            return "indices or added rows repeat in another way than by whole sequences"
        return self.does_not_fit(op, machine)

    def ranked(self, op: EmbeddingNorm, machine: NpuMachine) -> list[int]:
        tiles = len(op.lookups) + bool(op.added)
        periods = _periods(op)
        assert periods is not None
        # Scale, shift, an added row that all rows share; indices, and what wraps them.
        shared = 2 * 3 * (op.n + 32) + 4 * (len(op.lookups) + 2) * (_CHUNK + 16)
        return tile_rows(op.n, min(periods), tiles, machine.spec, shared=shared + 1024)

    def pack(self, op: EmbeddingNorm, point: Point, machine: NpuMachine) -> dict[int, Packer]:
        """Tables with their factors, and vectors, in the machine's type."""
        dtype, count = machine.numpy_dtype, 2 * len(op.lookups)
        factors = {2 * n + 1: x.factor for n, x in enumerate(op.lookups)}
        factors |= dict.fromkeys(range(count, len(op.inputs)), 1.0)
        return {
            n: lambda a, factor=factor: np.ascontiguousarray(a * np.float32(factor)).astype(dtype)
            for n, factor in factors.items()
        }

    def on_chip(self, op: EmbeddingNorm) -> frozenset[int]:
        return frozenset({len(op.inputs)})

    def emit_held(
        self, op: EmbeddingNorm, point: Point, machine: NpuMachine, held: frozenset[int]
    ) -> PrimFunc:
        rows, n, dtype = point["rows"], op.n, machine.dtype
        periods = _periods(op)
        assert periods is not None
        inner = min(periods)
        chunk = even(inner, max(rows, _CHUNK // rows * rows), rows)
        k = Kernel()
        with k:
            tables = []
            for m, x in enumerate(op.lookups):
                count = math.prod(x.indices)
                indices = k.argument(f"I{m}", (count,), "int32")
                tables.append(_Table(indices, count, k.argument(f"T{m}", (x.rows * n,), dtype), x.rows))
            added_rows = math.prod(op.added[:-1]) if op.added else 0
            added = k.argument("added", (added_rows, n), dtype) if op.added else None
            vectors = [k.argument(name, (n,), dtype) for name in ("scale", "shift")[: 1 + op.shifted]]
            y = k.argument("Y", (op.rows, n), dtype, L1 if held else DRAM)
            fixed = []
            for vector in (*vectors, *([added] if added_rows == 1 else [])):
                buffer = k.alloc(UB, (n,), dtype)
                at = (lambda j: (0, j)) if vector is added else (lambda j: (j,))
                k.load((n,), At(buffer, lambda j: (j,)), At(vector, at))
                fixed.append(At(buffer, lambda i, j, buffer=buffer: (j,)))
            scale, *rest = fixed
            shift = rest.pop(0) if op.shifted else None
            with ExitStack() as stack:
                o = stack.enter_context(k.loop(op.rows // inner))
                c = stack.enter_context(k.loop(ceil_div(inner, chunk)))
                count = extent_at(inner, chunk, c)

                def first(period: int) -> Index:
                    """Row of an operand at which the chunk begins."""
                    return c * chunk + (o * inner if period > inner else 0)

                def whole(i: Index, j: Index) -> tuple[Index, Index]:
                    return i, j

                below = k.alloc(UB, (chunk,), "int32")
                wrapped = []
                for x in tables:
                    raw = k.alloc(UB, (chunk,), "int32")
                    index = k.alloc(UB, (chunk,), "int32")
                    start, step = (first(x.count), 1) if x.count > 1 else (0, 0)
                    given = At(x.indices, lambda i, start=start, step=step: (start + i * step,))
                    k.load((count,), At(raw, lambda i: (i,)), given)
                    wrap(k, count, raw, index, below, x.rows)
                    wrapped.append(index)
                t = stack.enter_context(k.loop(ceil_div(count, rows), buffers=2))
                box = (extent_at(count, rows, t), n)
                tile, *others = [At(k.alloc(UB, (rows, n), dtype), whole) for _ in tables]
                for dst, x, index in zip((tile, *others), tables, wrapped, strict=True):
                    k.gather(box, dst, index, x.table, 0, n, x.rows, t * rows)
                if added_rows > 1:
                    others.append(At(k.alloc(UB, (rows, n), dtype), whole))
                    start = first(added_rows) + t * rows
                    k.load(box, others[-1], At(added, lambda i, j: (start + i, j)))
                others += rest
                _add(k, box, tile, others)
                emit_normalization(k, op.norm, rows, box, tile, tile, scale, shift)
                start = o * inner + c * chunk + t * rows
                k.store(box, At(y, lambda i, j: (start + i, j)), tile)
        return k.function


def _add(k: Kernel, box: Sequence[Index], tile: At, others: list[At]) -> None:
    """``tile += others``, two at a time."""
    for n in range(0, len(others) - 1, 2):
        k.ternary("add3", box, tile, tile, others[n], others[n + 1])
    if len(others) % 2:
        k.binary("add", box, tile, tile, others[-1])


def _periods(op: EmbeddingNorm) -> list[int] | None:
    """Numbers of rows after which operands that differ by rows repeat, the result's rows among them: two
    different ones at most.  None when it is not like that."""
    periods = {op.rows}
    for shape in (*(x.indices for x in op.lookups), *([op.added[:-1]] if op.added else [])):
        own = shape[next((i for i, extent in enumerate(shape) if extent != 1), len(shape)) :]
        if own != op.lead[len(op.lead) - len(own) :]:
            return None
        periods.add(math.prod(own))
    return sorted(periods - {1}) or [1] if len(periods - {1, op.rows}) <= 1 else None
