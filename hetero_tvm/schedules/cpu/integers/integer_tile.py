"""The register tile of integer products: packed panels of weights, and the loop over them.

::

    acc[rows][vectors] = 0                                   (registers, int32)
    for ko in groups / unroll:                               (serial)
        prefetch lines of the next panel
        for ki in unroll, r in rows, v in vectors:           (unrolled)
            acc[r][v] += dot(splat(word of X[r]), words of W[:, v])

A word holds the ``group`` values of K that one instruction multiplies (``dots.py``).  Weights are packed as
[panels, groups + tail, columns * group], the values of one word side by side; the tail of a panel holds the
sums of its columns as int32, which a zero point of X is multiplied with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu import next_panel
from hetero_tvm.schedules.cpu.dots import Dot
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.emit import LINE_BYTES, Index, Kernel


@dataclass(frozen=True)
class Panels:
    """Weights [k, n] as panels of ``columns``, ``group`` values of K to a word; words are a multiple of
    ``words``."""

    k: int
    n: int
    columns: int
    group: int
    words: int = 1
    dtype, item = "int8", 1
    """Type of the packed weights, and its bytes."""

    @property
    def count(self) -> int:
        """Number of panels."""
        return -(-self.n // self.columns)

    @property
    def groups(self) -> int:
        """Words along K."""
        return -(-self.k // (self.group * self.words)) * self.words

    @property
    def tail(self) -> int:
        """Rows of a panel that hold the sums of its columns."""
        return 4 // self.group

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the packed weights."""
        return self.count, self.groups + self.tail, self.columns * self.group

    def pack(self, w: np.ndarray) -> np.ndarray:
        """int8 [k, n] -> :attr:`shape`; zeros behind K and N."""
        count, rows, width = self.shape
        behind = self.groups * self.group - self.k
        padded = np.pad(w, ((0, behind), (0, count * self.columns - self.n)))
        words = padded.reshape(self.groups, self.group, count, self.columns).transpose(2, 0, 3, 1)
        sums = padded.sum(0, dtype=np.int32).reshape(count, self.columns).view(np.int8)
        packed = np.empty((count, rows, width), np.int8)
        packed[:, : self.groups] = words.reshape(count, self.groups, width)
        packed[:, self.groups :] = sums.reshape(count, self.tail, width)
        return packed

    def prefetch(
        self, k: Kernel, w: Buffer, panel: Expr, tile_index: Index, tiles: int, unroll: int
    ) -> Callable[[Expr], None] | None:
        """Code that fetches tile ``tile_index``'s share, of ``tiles``, of the next panel; None for one."""
        if self.count == 1:
            return None
        width = self.columns * self.group * self.item
        steps = max(1, self.groups // unroll)
        lines = -(-self.groups * width // LINE_BYTES)
        return next_panel.lines_ahead(k, w, panel, tile_index, tiles, steps, lines, LINE_BYTES // self.item)


class HalfPanels(Panels):
    """Weights in bfloat16, two to a word, without sums behind."""

    dtype, item = "uint16", 2

    @property
    def tail(self) -> int:
        return 0

    def pack(self, w: np.ndarray) -> np.ndarray:
        """Bits of bfloat16, uint16 [k, n] -> :attr:`shape`; zeros behind K and N."""
        behind = self.groups * self.group - self.k
        padded = np.pad(w, ((0, behind), (0, self.count * self.columns - self.n)))
        words = padded.reshape(self.groups, self.group, self.count, self.columns).transpose(2, 0, 3, 1)
        return np.ascontiguousarray(words.reshape(self.shape))


def column_sums(k: Kernel, w: Buffer, panels: Panels, panel: Expr, column: Index, width: int) -> Expr:
    """Sums of ``width`` columns of a panel from ``column`` on, int32."""
    row_bytes = panels.columns * panels.group
    at = column * 4
    values = k.load(
        w, [panel, panels.groups + tirx.floordiv(at, row_bytes), k.ramp(at % row_bytes, 4 * width)]
    )
    return tirx.reinterpret("int32" if width == 1 else f"int32x{width}", values)


def accumulate(
    k: Kernel,
    dot: Dot,
    acc: Buffer,
    tile: RegisterTile,
    lanes: int,
    panels: Panels,
    unroll: int,
    x_at: Callable[[Expr, Expr], Expr],
    w_at: Callable[[Index, Expr], Expr],
    on_step: Callable[[Expr], None] | None = None,
) -> None:
    """Emit the reduction of one register tile.

    Parameters
    ----------
    acc : buffer of ``dot.sums`` [rows, vectors * lanes].
    x_at : (row, ramp of ``dot.group`` positions along K) -> values of X.
    w_at : (row of the panel, ramp) -> packed weights.
    on_step : called with the number of the unrolled step, for prefetches.
    """
    group, many = dot.group, dot.group * lanes

    def each(body: Callable[[Expr, Expr], None]) -> None:
        with k.unroll(tile.rows) as r:
            with k.unroll(tile.vectors) as v:
                body(r, v)

    zero = k.splat(tirx.const(0, dot.sums), lanes)
    each(lambda r, v: k.store(acc, zero, [r, k.ramp(v * lanes, lanes)]))

    def step(way: Dot, word: Index) -> None:
        def one(r: Expr, v: Expr) -> None:
            words = []
            for inside in range(way.words):
                x = way.x_word(x_at(r, k.ramp((word + inside) * group, group)))
                w = way.w_words(w_at(word + inside, k.ramp(v * many, many)), lanes)
                words += [k.splat(x, lanes), w]
            at = [r, k.ramp(v * lanes, lanes)]
            k.store(acc, way.add(k.load(acc, at), lanes, *words), at)

        each(one)

    unroll = max(unroll, dot.words)
    full = panels.groups // unroll
    if full:
        with k.serial(full) as ko:
            if on_step is not None:
                on_step(ko)
            with k.unroll(unroll // dot.words) as ki:
                step(dot, ko * unroll + ki * dot.words)
    for way, word in dot.steps(full * unroll, panels.groups - full * unroll):
        step(way, word)


def tile_fits(tile: RegisterTile, dot: Dot, machine: CpuModel) -> bool:
    """Whether accumulators, weights, a word of X and temporaries have a register each."""
    words = (tile.vectors + 1) * dot.words
    return tile.rows * tile.vectors + words + dot.temporaries <= machine.registers


def step_cycles(tile: RegisterTile, dot: Dot, machine: CpuModel) -> float:
    """Cycles of one word: multiplications, loads, or the latency of the accumulators."""
    issue = dot.cycles * tile.rows * tile.vectors / machine.fma_units
    loads = machine.broadcast_cycles * tile.rows + machine.load_cycles * tile.vectors
    spare = 1.25 * machine.fma_latency * machine.fma_units
    thin = 1.0 + 0.2 * max(0.0, 1.0 - tile.rows * tile.vectors / spare)
    return max(issue, loads, machine.fma_latency) * thin
