"""Products with constant weights on the matrix unit.

Loops: one operand is *stationary*, a panel of it over the whole reduction lies in L1; tiles of the
other one stream through a ring in L1.  For every block of the stream the accumulators of ``sub``
tiles stay in L0C over the whole reduction, so a streamed tile is read from DRAM once per panel and
moved to its L0 once::

    for panel:                       L1 <- panel, tile by tile of the reduction
      for block of the stream:       (accumulators of sub tiles in L0C, in turns)
        for k:                       L1 <- streamed tile            (ring)
          for k0:                    L0 <- streamed part            (two versions)
            for s in sub:            L0 <- stationary part          (two versions); mmad
        for s in sub, rows of the tile: UB <- L0C + bias; epilogue; DRAM <- UB

Why it is fast: with few rows (a transformer's tokens) the activations are stationary, every weight
passes once, and DMA, moves, products and epilogues of different tiles run at the same time in
their queues; with many rows the weights are stationary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.matmul import BIAS, RESIDUAL, Matmul
from hetero_tvm.schedules.base import Knob, Packer, Point
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.base import NpuSpace
from hetero_tvm.schedules.npu.emit import L0A, L0B, L0C, L1, UB, At, Kernel
from hetero_tvm.schedules.npu.tiles import ceil_div, even, extent_at, round_up

STATIONARY = ("x", "w", "none")
MOST = 48
_ISSUE = 12
"""Cycles that an instruction costs its queue beyond its work: its own issue and its flags'."""


@dataclass(frozen=True)
class Tiles:
    """One choice: sizes in elements."""

    stationary: str
    tm: int
    tn: int
    tk: int
    slices: int
    """L0 steps of the reduction per streamed tile in L1."""
    sub: int
    """Tiles of the stationary operand per panel."""
    ring: int
    rows: int
    """Rows per piece of the epilogue."""

    def point(self) -> tuple[Any, ...]:
        """As the choice of a knob."""
        return (self.stationary, self.tm, self.tn, self.tk, self.slices, self.sub, self.ring, self.rows)


class NpuMatmulSpace(NpuSpace):
    """``ops.Matmul`` on the NPU."""

    name = "npu.matmul"
    version = 1

    def refuses(self, op: FusedOp, machine: Any) -> str | None:
        if not isinstance(op, Matmul):
            return f"is for matmul, not {op.kind}"
        return epilogue.supported(op.epilogue)

    def knobs(self, op: FusedOp, machine: Any) -> tuple[Knob, ...]:
        ranked = sorted(candidates(op, machine.spec), key=lambda t: estimate(op, t, machine.spec))
        return (Knob("tiles", tuple(t.point() for t in ranked[:MOST])),)

    def default(self, op: FusedOp, machine: Any) -> Point:
        best = min(candidates(op, machine.spec), key=lambda t: estimate(op, t, machine.spec))
        return {"tiles": best.point()}

    def check(self, op: FusedOp, point: Point, machine: Any) -> None:
        """A record may name any tiles that fit, also ones that today's ranking leaves out."""
        value = point.get("tiles")
        if not isinstance(value, tuple) or len(value) != 8 or not fits(op, Tiles(*value), machine.spec):
            raise ValueError(f"{self.name}: tiles={value!r} do not fit {machine.spec.name}")

    def features(self, op: FusedOp, point: Point, machine: Any) -> list[float]:
        tiles = Tiles(*point["tiles"])
        parts = queue_cycles(op, tiles, machine.spec)
        return [estimate(op, tiles, machine.spec), *parts, float(STATIONARY.index(tiles.stationary)),
                *map(float, point["tiles"][1:])]  # fmt: skip

    def pack(self, op: FusedOp, point: Point, machine: Any) -> dict[int, Packer]:
        """Column panels of the weights one after the other, each contiguous: a tile of a stream is one run.
        The last panel is as wide as the others."""
        from hetero_tvm.targets.npu.numbers import numpy_dtype

        tn = Tiles(*point["tiles"]).tn
        dtype = numpy_dtype(machine.short)

        def panels(w: np.ndarray) -> np.ndarray:
            wide = np.zeros((w.shape[0], round_up(w.shape[1], tn)), dtype)
            wide[:, : w.shape[1]] = w
            return wide.reshape(w.shape[0], -1, tn).transpose(1, 0, 2).reshape(-1)

        return {1: panels}

    def emit(self, op: FusedOp, point: Point, machine: Any) -> Any:
        return Emitter(op, Tiles(*point["tiles"]), machine).run()


# --- the choices ---------------------------------------------------------------------------------


def candidates(op: Matmul, spec: Any) -> Iterator[Tiles]:
    """Tiles that fit every scratchpad, over a grid of sensible sizes."""
    bm, bn, bk = spec.matrix_block
    l0c = spec.scratchpad("l0c") // 4
    for parts_m in (2, 4, 8, 16, 32):
        tm = even(op.m, bm * parts_m, bm) if op.m > bm else op.m
        for parts_n in (2, 4, 8, 16, 32):
            tn = even(op.n, bn * parts_n, bn) if op.n > bn else op.n
            if tm * tn > l0c:
                continue
            room = min(spec.scratchpad("l0a") // (4 * tm), spec.scratchpad("l0b") // (4 * tn))
            for limit in {room, 128, 64, 32}:
                if limit > room or limit < bk:
                    continue
                tk = even(op.k, limit // bk * bk, bk)
                for stationary in STATIONARY:
                    span = ceil_div(op.n, tn) if stationary == "w" else ceil_div(op.m, tm)
                    for sub in {1, 2, 3, 4, span}:
                        if sub > span or sub * tm * tn > l0c:
                            continue
                        for slices in (1, 2, 4):
                            if slices > 1 and (slices - 1) * tk >= op.k:
                                continue
                            for ring in (2, 4):
                                tiles = Tiles(
                                    stationary, tm, tn, tk, slices, sub, ring, piece_rows(op, tm, tn, spec)
                                )
                                if fits(op, tiles, spec):
                                    yield tiles


def piece_rows(op: Matmul, tm: int, tn: int, spec: Any) -> int:
    """Rows per piece of the epilogue: some thousand elements, so that issue costs little and the last
    piece is short."""
    tiles = 2 * (1 + epilogue.temporaries(epilogue.split(op.epilogue)[2]))
    room = spec.scratchpad("ub") * 7 // 8 // (2 * tiles * tn)
    wanted = max(1, 64 * spec.vector_lanes // tn)
    return max(1, min(tm, room, wanted))


def _l1_bytes(op: Matmul, t: Tiles, panels: int) -> int:
    """Of L1, with so many versions of the panel."""
    streamed = (t.tm if t.stationary == "w" else t.tn) * t.tk * t.slices * 2 * t.ring
    held = t.sub * (t.tn if t.stationary == "w" else t.tm)
    if t.stationary == "none":
        return streamed + held * t.tk * t.slices * t.ring * 2
    return streamed + panels * held * round_up(op.k, t.tk) * 2


def fits(op: Matmul, t: Tiles, spec: Any) -> bool:
    tiles = 2 * (1 + epilogue.temporaries(epilogue.split(op.epilogue)[2]))
    return (
        _l1_bytes(op, t, 1) <= spec.scratchpad("l1")
        and 4 * t.tm * t.tk <= spec.scratchpad("l0a")
        and 4 * t.tn * t.tk <= spec.scratchpad("l0b")
        and 4 * t.sub * t.tm * t.tn <= spec.scratchpad("l0c")
        and 2 * tiles * t.rows * t.tn + 16 * t.tn <= spec.scratchpad("ub")
    )


def queue_cycles(op: Matmul, t: Tiles, spec: Any) -> tuple[float, float, float, float, float]:
    """Estimated work of the queues: DMA of both directions together, moves, matrix, vector; and the start
    and end that nothing overlaps."""
    m_tiles, n_tiles, k_tiles = ceil_div(op.m, t.tm), ceil_div(op.n, t.tn), ceil_div(op.k, t.tk)
    inner, outer = (n_tiles, m_tiles) if t.stationary == "w" else (m_tiles, n_tiles)
    panels, blocks = ceil_div(inner, t.sub), outer
    x, w = 2.0 * op.m * op.k, 2.0 * op.k * op.n
    moved = {"x": x + w * panels, "w": w + x * panels, "none": x * blocks + w * panels}[t.stationary]
    residuals = op.epilogue.count(RESIDUAL)
    out = 2.0 * op.m * op.n
    dma = (moved + out * (1 + residuals)) / spec.dram_bytes_per_cycle
    mmads = m_tiles * n_tiles * k_tiles
    matrix = float(n_tiles * k_tiles * spec.matrix_cycles(op.m, t.tn, t.tk) + mmads * _ISSUE)
    a_moves, b_moves = (mmads // max(1, min(t.sub, inner)), mmads) if t.stationary == "w" else (
        mmads, mmads // max(1, min(t.sub, inner)))  # fmt: skip
    move = a_moves * (2.0 * t.tm * t.tk / spec.l1_to_l0a + _ISSUE)
    move += b_moves * (2.0 * t.tn * t.tk / spec.l1_to_l0b + _ISSUE)
    divisor = spec.transcendental_divisor
    rest = epilogue.split(op.epilogue)[2]
    pieces = m_tiles * n_tiles * ceil_div(t.tm, t.rows)
    vector = op.m * op.n * (4.0 / spec.l0c_to_ub + epilogue.passes(rest, divisor) / spec.vector_lanes)
    vector += pieces * _ISSUE * (1 + len(rest))
    versions = 2 if 8 * t.sub * t.tm * t.tn <= spec.scratchpad("l0c") else 1
    if versions == 1:  # the next block's products wait until the accumulators are out
        out_rate = max(4.0 / spec.l0c_to_ub, 2.0 / spec.dram_bytes_per_cycle)
        matrix += 1.2 * panels * blocks * t.sub * t.tm * t.tn * out_rate
    first = (t.tm + t.tn) * t.tk * t.slices * 2.0 / spec.dram_bytes_per_cycle + 2 * spec.dram_latency
    last = t.tm * t.tn * (4.0 / spec.l0c_to_ub) + t.rows * t.tn * 2.0 / spec.dram_bytes_per_cycle
    if t.stationary != "none":  # a panel is loaded while less than usual can run
        held = t.sub * (t.tn if t.stationary == "w" else t.tm)
        first += 0.25 * panels * held * op.k * 2.0 / spec.dram_bytes_per_cycle
    return dma, move, matrix, vector, first + last


def estimate(op: Matmul, t: Tiles, spec: Any) -> float:
    """Cycles of the kernel: the busiest queue, some of the others' work, and what does not overlap."""
    *queues, ends = queue_cycles(op, t, spec)
    busiest = max(queues)
    # The nearer the DMA is to the busiest queue, the more a deep ring is worth.
    jitter = 0.3 * busiest * (queues[0] / busiest) ** 3 / (t.ring * t.slices)
    return busiest + ends + 0.02 * (sum(queues) - busiest) + jitter


# --- the kernel ------------------------------------------------------------------------------------


class Emitter:
    def __init__(self, op: Matmul, tiles: Tiles, machine: Any):
        self.op, self.t, self.dtype = op, tiles, machine.dtype
        both = 8 * tiles.sub * tiles.tm * tiles.tn <= machine.spec.scratchpad("l0c")
        self.versions = 2 if both else 1
        piece = 2 * tiles.rows * tiles.tn * (1 + epilogue.temporaries(epilogue.split(op.epilogue)[2]))
        # With a residual to load, more pieces under way hide its latency.
        deep = 4 * piece + 16 * tiles.tn <= machine.spec.scratchpad("ub")
        self.pieces = 4 if deep and RESIDUAL in op.epilogue else 2
        self.panels = 2 if _l1_bytes(op, tiles, 2) <= machine.spec.scratchpad("l1") else 1
        self.k = Kernel()
        self.first_weight = self.first_bias = 0
        """Where the weights and the bias begin in their operands."""

    def run(self) -> Any:
        op, k = self.op, self.k
        with k:
            self.x = k.argument("X", (op.m, op.k), self.dtype)
            self._constants_and_result((op.m, op.n))
            self._panels()
        return k.function

    def _constants_and_result(self, shape: tuple[int, ...]) -> None:
        """The parameters behind X; the result, and residuals, have ``shape``."""
        op, k = self.op, self.k
        self.w = k.argument("W", (op.k * round_up(op.n, self.t.tn),), self.dtype)
        self.extra = [
            k.argument(f"{step}{n}", (op.n,), "float32") if step == BIAS
            else k.argument(f"{step}{n}", shape, self.dtype)
            for n, step in enumerate(s for s in op.epilogue if s in (BIAS, RESIDUAL))
        ]  # fmt: skip
        self.y = k.argument("Y", shape, self.dtype)

    def _output(self, row: Any, column: Any, buffer: Any) -> At:
        """The region of the result (or a residual) from (row, column)."""
        return At(buffer, lambda a, b: (row + a, column + b))

    def _weight(self, j: Any, r: Any, c: Any) -> tuple[Any, ...]:
        """Index of element (r, c) of column panel ``j``."""
        return (self.first_weight + j * (self.op.k * self.t.tn) + r * self.t.tn + c,)

    def _panels(self) -> None:
        op, t, k = self.op, self.t, self.k
        tk = t.tk
        steps = ceil_div(op.k, tk)
        by_weights = t.stationary == "w"
        inner = ceil_div(op.n, t.tn) if by_weights else ceil_div(op.m, t.tm)
        outer = ceil_div(op.m, t.tm) if by_weights else ceil_div(op.n, t.tn)
        panels = ceil_div(inner, t.sub)
        with k.loop(panels, buffers=self.panels) as p:
            count = extent_at(inner, t.sub, p)
            panel = None
            if t.stationary != "none":
                held = (t.sub, steps, tk, t.tn) if by_weights else (t.sub, steps, t.tm, tk)
                panel = k.alloc(L1, held, self.dtype)
            with k.loop(outer, buffers=self.versions) as o:
                c = k.alloc(L0C, (t.sub, t.tm, t.tn), "float32")
                with k.loop(ceil_div(steps, t.slices), buffers=t.ring) as k1:
                    self._reduce(p, o, k1, count, panel, c)
                with k.loop(count) as s:
                    i, j = (o, p * t.sub + s) if by_weights else (p * t.sub + s, o)
                    self._finish(i, j, s, c)

    def _load_x(self, dst: At, i: Any, r: Any) -> None:
        """Rows ``i * tm ...``, step ``r`` of the reduction, into the region ``dst`` of (row, column)."""
        op, t = self.op, self.t
        self.k.load(
            (extent_at(op.m, t.tm, i), extent_at(op.k, t.tk, r)), dst,
            At(self.x, lambda a, b: (i * t.tm + a, r * t.tk + b)),
        )  # fmt: skip

    def _load_weights(self, dst: At, j: Any, r: Any, depth: Any) -> None:
        """Rows ``r * tk ...`` of column panel ``j``, into the region ``dst`` of loops (row, column)."""
        op, t = self.op, self.t
        width = extent_at(op.n, t.tn, j)
        self.k.load(
            (depth, width), dst, At(self.w, lambda a, b: self._weight(j, r * t.tk + a, b))
        )  # fmt: skip

    def _reduce(self, p: Any, o: Any, k1: Any, count: Any, panel: Any, c: Any) -> None:
        op, t, k = self.op, self.t, self.k
        steps = ceil_div(op.k, t.tk)
        by_weights = t.stationary == "w"
        deep = t.slices * t.tk
        depth = extent_at(op.k, deep, k1)
        rows, width = extent_at(op.m, t.tm, o), extent_at(op.n, t.tn, o)
        if by_weights:
            stream = k.alloc(L1, (t.slices, t.tm, t.tk), self.dtype)
            with k.loop(extent_at(steps, t.slices, k1)) as k0:
                r = k1 * t.slices + k0
                with k.when(o == 0):
                    # The panel arrives step by step with the first block that needs it.
                    with k.loop(count) as s:
                        self._load_weights(
                            At(panel, lambda a, b: (s, r, a, b)), p * t.sub + s, r,
                            extent_at(op.k, t.tk, r),
                        )  # fmt: skip
                self._load_x(At(stream, lambda a, b: (k0, a, b)), o, r)
        else:
            stream = k.alloc(L1, (deep, t.tn), self.dtype)
            self._load_weights(At(stream, lambda a, b: (a, b)), o, k1 * t.slices, depth)
            streamed = t.stationary == "none"
            if streamed:
                panel = k.alloc(L1, (t.sub, t.slices, t.tm, t.tk), self.dtype)
            with (
                k.when(streamed or o == 0),
                k.loop(extent_at(steps, t.slices, k1)) as k0,
                k.loop(count) as s,
            ):
                r = k1 * t.slices + k0
                at = k0 if streamed else r
                self._load_x(At(panel, lambda a, b: (s, at, a, b)), p * t.sub + s, r)
        with k.loop(extent_at(steps, t.slices, k1), buffers=2) as k0:
            r = k1 * t.slices + k0
            d = extent_at(op.k, t.tk, r)
            if by_weights:
                a0 = k.alloc(L0A, (t.tm, t.tk), self.dtype)
                k.move((rows, d), At(a0, lambda a, b: (a, b)), At(stream, lambda a, b: (k0, a, b)))
            else:
                b0 = k.alloc(L0B, (t.tk, t.tn), self.dtype)
                k.move(
                    (d, width), At(b0, lambda a, b: (a, b)), At(stream, lambda a, b: (k0 * t.tk + a, b))
                )
            with k.loop(count, buffers=2) as s:
                if by_weights:
                    j = p * t.sub + s
                    wide = extent_at(op.n, t.tn, j)
                    b0 = k.alloc(L0B, (t.tk, t.tn), self.dtype)
                    k.move((d, wide), At(b0, lambda a, b: (a, b)), At(panel, lambda a, b: (s, r, a, b)))
                    extents = (rows, wide, d)
                else:
                    high = extent_at(op.m, t.tm, p * t.sub + s)
                    a0 = k.alloc(L0A, (t.tm, t.tk), self.dtype)
                    at = k0 if t.stationary == "none" else r
                    k.move((high, d), At(a0, lambda a, b: (a, b)), At(panel, lambda a, b: (s, at, a, b)))
                    extents = (high, width, d)
                k.mmad(
                    extents, At(c, lambda i, j, q: (s, i, j)), At(a0, lambda i, j, q: (i, q)),
                    At(b0, lambda i, j, q: (q, j)), r == 0,
                )  # fmt: skip

    def _finish(self, i: Any, j: Any, s: Any, c: Any) -> None:
        """Tile (i, j): out of the accumulators, piece by piece of some rows."""
        op, t, k = self.op, self.t, self.k
        high, width = extent_at(op.m, t.tm, i), extent_at(op.n, t.tn, j)
        bias, relu, rest = epilogue.split(op.epilogue)
        bias_tile = None
        operands = self.extra
        with k.loop(1, buffers=2):
            order = [step for step in op.epilogue if step in (BIAS, *epilogue.TENSORS)]
            tiles = {}
            for n, step in enumerate(order):
                if step == BIAS:
                    tiles[n] = k.alloc(UB, (t.tn,), "float32")
                    k.load(
                        (width,), At(tiles[n], lambda b: (b,)),
                        At(operands[n], lambda b: (self.first_bias + j * t.tn + b,)),
                    )  # fmt: skip
            if bias:
                bias_tile = At(tiles[0], lambda a, b: (b,))
            pieces = (high + t.rows - 1) // t.rows
            with k.loop(pieces, buffers=self.pieces) as e:
                part = t.rows if isinstance(high, int) and high % t.rows == 0 else _least(
                    t.rows, high - e * t.rows
                )  # fmt: skip
                y = k.alloc(UB, (t.rows, t.tn), self.dtype)
                k.move_out(
                    (part, width), At(y, lambda a, b: (a, b)),
                    At(c, lambda a, b: (s, e * t.rows + a, b)), bias=bias_tile, relu=relu,
                )  # fmt: skip

                def at_output(buffer: Any) -> At:
                    return self._output(i * t.tm + e * t.rows, j * t.tn, buffer)

                pending = [n for n in range(len(order)) if not (bias and n == 0)]

                def residual(buffer: Any) -> None:
                    n = next(n for n in pending if order[n] in epilogue.TENSORS)
                    pending.remove(n)
                    k.load((part, width), At(buffer, lambda a, b: (a, b)), at_output(operands[n]))

                later = next((n for n in pending if order[n] == BIAS), None)
                bias_row = None if later is None else At(tiles[later], lambda a, b: (b,))
                operands_of = epilogue.Operands(residual, bias_row)
                epilogue.apply(k, rest, y, (part, width), self.dtype, operands_of)
                k.store((part, width), at_output(self.y), At(y, lambda a, b: (a, b)))


def _least(a: int, b: Any) -> Any:
    from tvm import tirx

    return min(a, b) if isinstance(b, int) else tirx.min(a, b)
