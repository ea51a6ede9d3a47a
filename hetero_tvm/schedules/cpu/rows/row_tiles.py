"""Sharing independent rows among threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.emit import Kernel, tirx

_LAUNCH_WORTH = 16 << 10
"""Bytes below which waking the other threads (1 to 5 us) costs more than it saves."""


def chunk_choices(rows: int, machine: CpuModel) -> tuple[int, ...]:
    """1 (no launch), one chunk per thread, and a few more."""
    return tuple(sorted({min(rows, c) for c in (1, machine.threads, 4 * machine.threads)}))


def default_chunks(rows: int, nbytes: int, machine: CpuModel) -> int:
    return 1 if nbytes < _LAUNCH_WORTH else min(rows, machine.threads)


def each_row(k: Kernel, rows: int, chunks: int, body: Callable[[Any], None]) -> None:
    """``body(row)`` over all rows, in ``chunks`` contiguous parallel pieces of nearly equal size."""
    with k.parallel(chunks) as chunk:
        if chunks == rows:
            body(chunk)
            return
        first = tirx.floordiv(chunk * rows, chunks)
        count = tirx.floordiv((chunk + 1) * rows, chunks) - first
        with k.serial(rows if chunks == 1 else count) as i:
            body(first + i)
