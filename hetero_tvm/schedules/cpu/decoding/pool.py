"""Keys and values in pages: what kernels that write and read them share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hetero_tvm.host.tvm import Buffer, Expr, Var, tirx
from hetero_tvm.ops.decoding.contracts import KEYS, Heads
from hetero_tvm.schedules.cpu.decoding.symbolic import SymbolicKernel, quotient, remainder
from hetero_tvm.schedules.cpu.rows.row_reduction import maximum, reduce_row
from hetero_tvm.schedules.emit import LINE_BYTES, Index, constant, int32


class Pool:
    """Keys and values of one layer, as arguments of a kernel."""

    def __init__(self, k: SymbolicKernel, heads: Heads, lanes: int):
        self._k, self._heads, self._lanes = k, heads, lanes
        pages = k.symbol("p")
        keys, values = heads.pools(pages)
        self.keys, self.values = k.argument("K", keys, heads.cache), k.argument("V", values, heads.cache)
        self.layer: Expr = int32(0)

    @property
    def _integers(self) -> bool:
        return self._heads.cache == "int8"

    def key(self, page: Expr, head: Expr, panel: Index, channel: Index, key: Index, width: int) -> Expr:
        """One channel of ``width`` neighbouring keys; without their scales."""
        at = [page, self.layer, head, panel, channel, self._k.ramp(key, width)]
        return widened(self._k.load(self.keys, at), self._heads, width)

    def value(self, page: Expr, head: Expr, panel: Expr, row: Index, channel: Index, width: int) -> Expr:
        """Neighbouring channels of the ``row``-th value of a panel; without its scale."""
        at = [page, self.layer, head, *self._value_at(panel, row, channel, width)]
        return widened(self._k.load(self.values, at), self._heads, width)

    def fetch_keys(self, page: Expr, head: Expr, panel: Index, first: Index, channels: int) -> None:
        """Ask for the lines of some channels of a panel of keys."""
        each = max(1, self._line // KEYS)
        for channel in range(0, channels, each):
            at = [page, self.layer, head, panel, first + channel, int32(0)]
            self._k.prefetch(self.keys, at)

    def fetch_value(
        self, page: Expr, head: Expr, panel: Expr, row: Index, channel: Index, width: int
    ) -> None:
        """Ask for the lines of neighbouring channels of a value."""
        for line in range(0, width, self._line):
            at = self._value_at(panel, row, channel + line, 1)
            self._k.prefetch(self.values, [page, self.layer, head, *at])

    @property
    def _line(self) -> int:
        """Numbers in a cache line."""
        return LINE_BYTES // np.dtype(self._heads.cache).itemsize

    def key_scales(self, page: Expr, head: Expr, panel: Index, key: int, width: int) -> Expr | None:
        """Scales of neighbouring keys of a panel; None where they have none."""
        return self._scales(self.keys, self._heads.dim, page, head, panel, key, width)

    def value_scales(self, page: Expr, head: Expr, panel: Index, row: int, width: int) -> Expr | None:
        """Scales of neighbouring values of a panel; None where they have none."""
        return self._scales(self.values, self._heads.value_dim, page, head, panel, row, width)

    def put(
        self,
        page: Expr,
        head: Expr,
        slot: Expr,
        key_at: Callable[[Index, int], Expr],
        value_at: Callable[[Index, int], Expr],
    ) -> None:
        """Write the key and the value of a head, float32 by (channel, width), to a slot of a page."""
        k, h = self._k, self._heads
        panel, key = k.let(quotient(slot, KEYS)), k.let(remainder(slot, KEYS))
        stored = self._stored(key_at, self.keys, h.dim, page, head, panel, key)
        with k.serial(h.dim) as d:
            k.store(self.keys, stored(d), [page, self.layer, head, panel, d, key])
        stored = self._stored(value_at, self.values, h.value_dim, page, head, panel, key)
        with k.serial(h.value_dim) as d:
            k.store(self.values, stored(d), [page, self.layer, head, *self._value_at(panel, key, d, 1)])

    def _value_at(self, panel: Expr, row: Index, channel: Index, width: int) -> list[Index]:
        if self._integers:  # rows of values one after the other in the bytes of a panel
            return [panel, 0, self._k.ramp(row * self._heads.value_dim + channel, width)]
        return [panel * KEYS + row, self._k.ramp(channel, width)]

    def _stored(
        self,
        get: Callable[[Index, int], Expr],
        pool: Buffer,
        dim: int,
        page: Expr,
        head: Expr,
        panel: Expr,
        slot: Expr,
    ) -> Callable[[Expr], Expr]:
        """Channel -> number as the pool stores it; writes the scale where there is one."""
        k, cache = self._k, self._heads.cache
        if not self._integers:
            return lambda d: get(d, 1) if cache == "float32" else tirx.Cast(cache, get(d, 1))
        peak = k.let(reduce_row(k, dim, self._lanes, lambda c, width: tirx.abs(get(c, width)), maximum, 0.0))
        scale = tirx.reinterpret("int8x4", k.let(peak * constant(1.0 / 127)))
        k.store(pool, scale, [page, self.layer, head, panel, dim, k.ramp(slot * 4, 4)])
        factor = k.let(tirx.Select(peak > constant(0.0), constant(127.0) / peak, constant(0.0)))
        return lambda d: tirx.Cast("int8", tirx.nearbyint(get(d, 1) * factor))

    def _scales(
        self, pool: Buffer, dim: int, page: Expr, head: Expr, panel: Index, first: int, width: int
    ) -> Expr | None:
        if not self._integers:
            return None
        at = [page, self.layer, head, panel, dim, self._k.ramp(first * 4, 4 * width)]
        return tirx.reinterpret(f"float32x{width}", self._k.load(pool, at))


def widened(value: Expr, heads: Heads, width: int) -> Expr:
    if heads.cache == "float32":
        return value
    return tirx.Cast(f"float32x{width}" if width > 1 else "float32", value)


def places(k: SymbolicKernel, rows: Var) -> tuple[Buffer, Buffer, Buffer, Var]:
    """Arguments that say where rows belong: positions, sequences, tables; and pages of a table."""
    pages = k.symbol("w")
    positions, sequences = (
        k.argument("positions", (rows,), "int32"),
        k.argument("sequences", (rows,), "int32"),
    )
    return positions, sequences, k.argument("tables", (k.symbol("s"), pages), "int32"), pages
