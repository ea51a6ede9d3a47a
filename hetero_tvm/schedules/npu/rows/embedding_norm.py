"""Embeddings looked up, added and normalised.

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
from contextlib import ExitStack
from typing import Any

import numpy as np

from hetero_tvm.host.tvm import tirx
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.embedding_norm import EmbeddingNorm
from hetero_tvm.schedules.base import Knob, Packer, Point
from hetero_tvm.schedules.npu.base import NpuSpace, stored_as
from hetero_tvm.schedules.npu.emit import DRAM, L1, UB, At, Kernel
from hetero_tvm.schedules.npu.rows.normalization import normalise, tile_rows
from hetero_tvm.schedules.npu.tensor_program.emit_gather import wrap
from hetero_tvm.schedules.npu.tiles import ceil_div, even, extent_at

_CHUNK = 512
"""Most rows whose indices lie in the unified buffer at once."""


class NpuEmbeddingNormSpace(NpuSpace):
    """``ops.EmbeddingNorm`` whose indices and added rows repeat by whole sequences."""

    name = "npu.embedding_norm"
    version = 1

    def refuses(self, op: FusedOp, machine: Any) -> str | None:
        if not isinstance(op, EmbeddingNorm):
            return f"is for embedding_norm, not {op.kind}"
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
        if not self._rows(op, machine):
            return f"a row of {op.n} elements does not fit the unified buffer of {machine.spec.name}"
        return None

    def _rows(self, op: EmbeddingNorm, machine: Any) -> list[int]:
        tiles = len(op.lookups) + bool(op.added)
        periods = _periods(op)
        assert periods is not None
        # Scale, shift, an added row that all rows share; indices, and what wraps them.
        shared = 2 * 3 * (op.n + 32) + 4 * (len(op.lookups) + 2) * (_CHUNK + 16)
        return tile_rows(op.n, min(periods), tiles, machine.spec, shared=shared + 1024)

    def knobs(self, op: FusedOp, machine: Any) -> tuple[Knob, ...]:
        return (Knob("rows", tuple(self._rows(op, machine))),)

    def default(self, op: FusedOp, machine: Any) -> Point:
        return {"rows": self._rows(op, machine)[0]}

    def features(self, op: FusedOp, point: Point, machine: Any) -> list[float]:
        return [float(point["rows"]), float(ceil_div(op.rows, point["rows"])), float(op.n)]

    def pack(self, op: FusedOp, point: Point, machine: Any) -> dict[int, Packer]:
        """Tables with their factors, and vectors, in the machine's type."""
        from hetero_tvm.machines.npu.numbers import numpy_dtype

        dtype, count = numpy_dtype(machine.short), 2 * len(op.lookups)
        factors = {2 * n + 1: x.factor for n, x in enumerate(op.lookups)}
        factors |= dict.fromkeys(range(count, len(op.inputs)), 1.0)
        return {
            n: lambda a, factor=factor: np.ascontiguousarray(a * np.float32(factor)).astype(dtype)
            for n, factor in factors.items()
        }

    def on_chip(self, op: FusedOp) -> frozenset[int]:
        return frozenset({len(op.inputs)})

    def emit(self, op: FusedOp, point: Point, machine: Any) -> Any:
        return self.emit_held(op, point, machine, frozenset())

    def emit_held(self, op: FusedOp, point: Point, machine: Any, held: frozenset[int]) -> Any:
        rows, n, dtype = point["rows"], op.n, machine.dtype
        periods = _periods(op)
        assert periods is not None
        inner = min(periods)
        chunk = even(inner, max(rows, _CHUNK // rows * rows), rows)
        k = Kernel()
        with k:
            tables = []
            for m, x in enumerate(op.lookups):
                own = math.prod(x.indices)
                indices = k.argument(f"I{m}", (own,), "int32")
                tables.append((indices, own, k.argument(f"T{m}", (x.rows * n,), dtype), x.rows))
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

                def first(period: int) -> Any:
                    """Row of an operand at which the chunk begins."""
                    return c * chunk + (o * inner if period > inner else 0)

                def whole(i: Any, j: Any) -> tuple[Any, Any]:
                    return i, j

                below = k.alloc(UB, (chunk,), "int32")
                wrapped = []
                for indices, own, _, size in tables:
                    raw = k.alloc(UB, (chunk,), "int32")
                    index = k.alloc(UB, (chunk,), "int32")
                    start, step = (first(own), 1) if own > 1 else (0, 0)
                    given = At(indices, lambda i, start=start, step=step: (start + i * step,))
                    k.load((count,), At(raw, lambda i: (i,)), given)
                    wrap(k, count, raw, index, below, size)
                    wrapped.append(index)
                t = stack.enter_context(k.loop(ceil_div(count, rows), buffers=2))
                box = (_least(count, rows, t), n)
                tile, *others = [At(k.alloc(UB, (rows, n), dtype), whole) for _ in tables]
                for dst, (*_, table, size), index in zip((tile, *others), tables, wrapped, strict=True):
                    k.gather(box, dst, index, table, 0, n, size, t * rows)
                if added_rows > 1:
                    others.append(At(k.alloc(UB, (rows, n), dtype), whole))
                    start = first(added_rows) + t * rows
                    k.load(box, others[-1], At(added, lambda i, j: (start + i, j)))
                others += rest
                _add(k, box, tile, others)
                normalise(k, op.norm, rows, box, tile, tile, scale, shift)
                start = o * inner + c * chunk + t * rows
                k.store(box, At(y, lambda i, j: (start + i, j)), tile)
        return k.function


def _add(k: Kernel, box: tuple[Any, ...], tile: At, others: list[At]) -> None:
    """``tile += others``, two at a time."""
    for n in range(0, len(others) - 1, 2):
        k.ternary("add3", box, tile, tile, others[n], others[n + 1])
    if len(others) % 2:
        k.binary("add", box, tile, tile, others[-1])


def _least(count: Any, rows: int, t: Any) -> Any:
    """Rows of tile ``t`` of a chunk of ``count`` rows, which may depend on the chunk."""
    return extent_at(count, rows, t) if isinstance(count, int) else tirx.min(rows, count - t * rows)


def _periods(op: EmbeddingNorm) -> list[int] | None:
    """After how many rows every operand that is not the same for all repeats (the result's rows among
    them): two different numbers at most.  None when it is not like that."""
    periods = {op.rows}
    for shape in (*(x.indices for x in op.lookups), *([op.added[:-1]] if op.added else [])):
        own = shape[next((i for i, extent in enumerate(shape) if extent != 1), len(shape)) :]
        if own != op.lead[len(op.lead) - len(own) :]:
            return None
        periods.add(math.prod(own))
    return sorted(periods - {1}) or [1] if len(periods - {1, op.rows}) <= 1 else None
