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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hetero_tvm._bootstrap import import_tvm

import_tvm()

from tvm import tirx  # noqa: E402

from hetero_tvm.ops.base import FusedOp  # noqa: E402
from hetero_tvm.ops.matmul import BIAS, RESIDUAL, Matmul  # noqa: E402
from hetero_tvm.schedules.base import Knob, Packer, Point  # noqa: E402
from hetero_tvm.schedules.npu import epilogue  # noqa: E402
from hetero_tvm.schedules.npu.base import NpuSpace  # noqa: E402
from hetero_tvm.schedules.npu.emit import DRAM, L0A, L0B, L0C, L1, UB, At, Kernel  # noqa: E402
from hetero_tvm.schedules.npu.image import Image  # noqa: E402
from hetero_tvm.schedules.npu.tiles import ceil_div, even, extent_at, round_up  # noqa: E402

STATIONARY = ("x", "w", "none")
MOST = 48
_ISSUE = 12
_ISSUE_MATRIX = 24
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
        return self.emit_held(op, point, machine, frozenset())

    def on_chip(self, op: FusedOp) -> frozenset[int]:
        return on_chip(op)

    def tables(
        self, op: FusedOp, point: Point, machine: Any, held: frozenset[int] = frozenset()
    ) -> list[np.ndarray]:
        return tables(roles(op, held), machine)

    def fitted(
        self, op: FusedOp, point: Point | None, machine: Any, held: frozenset[int], l1: int
    ) -> Point | None:
        return fitted(op, point, machine.spec, roles(op, held), l1)

    def emit_held(self, op: FusedOp, point: Point, machine: Any, held: frozenset[int]) -> Any:
        tiles, copied = Tiles(*point["tiles"]), point.get("copied", 0)
        return Emitter(op, tiles, machine, roles(op, held), point.get("panels"), copied=copied).run()


# --- chains that stay on chip ---------------------------------------------------------------------

Roles = frozenset[str]
"""Of operands that lie in L1: "x", "w", "residual", "y"."""
NOTHING: Roles = frozenset()


def _names(op: Any) -> list[str]:
    """The role of every operand, and of the result."""
    return ["x", "w", *(s for s in op.epilogue if s in (BIAS, RESIDUAL)), "y"]


def on_chip(op: Any) -> frozenset[int]:
    """Indices that may lie in L1.  A residual only where it is added before anything but the bias: it
    enters through the matrix unit."""
    names = _names(op)
    steps = op.epilogue[1:] if op.epilogue[:1] == (BIAS,) else op.epilogue
    first = steps[:1] == (RESIDUAL,) and op.epilogue.count(RESIDUAL) == 1
    return frozenset(n for n, name in enumerate(names) if name != BIAS and (name != RESIDUAL or first))


def roles(op: Any, held: frozenset[int]) -> Roles:
    names = [*_names(op), "copy"]
    return frozenset(names[n] for n in held)


def unit_size(spec: Any) -> int:
    """Of the unit matrix that residuals in L1 are multiplied with."""
    return max(spec.matrix_block[1:])


def tables(held: Roles, machine: Any) -> list[np.ndarray]:
    from hetero_tvm.targets.npu.numbers import numpy_dtype

    return [np.eye(unit_size(machine.spec), dtype=numpy_dtype(machine.short))] if RESIDUAL in held else []


def fitted(op: Matmul, point: Point | None, spec: Any, held: Roles, l1: int) -> Point | None:
    """The given tiles if they fit, else the best that do; with as deep a ring as there is room for."""
    given = Tiles(*point["tiles"]) if point is not None else None
    if given is None or not fits(op, given, spec, held, l1):
        choices = [t for t in candidates(op, spec, held, l1)]
        if not choices:
            return None
        given = min(choices, key=lambda t: estimate(op, t, spec, held))
    tiles = deepen(op, given, held, lambda t: fits(op, t, spec, held, l1))
    return {"tiles": tiles.point(), "panels": 2 if _l1_bytes(op, tiles, 2, held) <= l1 else 1}


def deepen(op: Matmul, t: Tiles, held: Roles, fit: Any) -> Tiles:
    """With as deep a ring as has room, up to the whole stream: what the next kernel streams arrives while
    this one computes."""
    whole = ceil_div(op.k, t.tk * t.slices) * ceil_div(op.n, t.tn)
    if t.stationary == "w":
        whole = ceil_div(ceil_div(op.n, t.tn), t.sub) if "x" in held else 2
    while t.ring < min(whole, 64):
        deeper = replace(t, ring=t.ring * 2)
        if not fit(deeper):
            break
        t = deeper
    return t


# --- the choices ---------------------------------------------------------------------------------


def candidates(op: Matmul, spec: Any, held: Roles = NOTHING, l1: int | None = None) -> Iterator[Tiles]:
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
                            for ring in (1, 2, 4) if held and stationary == "w" else (2, 4):
                                tiles = Tiles(
                                    stationary, tm, tn, tk, slices, sub, ring, piece_rows(op, tm, tn, spec)
                                )
                                if fits(op, tiles, spec, held, l1):
                                    yield tiles


def piece_rows(op: Matmul, tm: int, tn: int, spec: Any) -> int:
    """Rows per piece of the epilogue: some thousand elements, so that issue costs little and the last
    piece is short."""
    tiles = 2 * (1 + epilogue.temporaries(epilogue.split(op.epilogue)[2]))
    room = spec.scratchpad("ub") * 7 // 8 // (2 * tiles * tn)
    wanted = max(1, 64 * spec.vector_lanes // tn)
    return max(1, min(tm, room, wanted))


def _l1_bytes(op: Matmul, t: Tiles, panels: int, held: Roles = NOTHING) -> int:
    """Of L1, with so many versions of the panel; without what is there anyway."""
    if t.stationary == "w" and "x" in held:
        panels = t.ring  # nothing streams: the ring is one of panels
    part_x, part_w = t.tm * 2, t.tn * 2
    streamed, panel = (part_x, part_w) if t.stationary == "w" else (part_w, part_x)
    names = ("x", "w") if t.stationary == "w" else ("w", "x")
    depth = t.tk * t.slices * t.ring if t.stationary == "none" else panels * round_up(op.k, t.tk)
    total = 0 if names[0] in held else streamed * t.tk * t.slices * t.ring
    total += 0 if names[1] in held else panel * t.sub * depth
    return total + (RESIDUAL in held) * 4096


def fits(op: Matmul, t: Tiles, spec: Any, held: Roles = NOTHING, l1: int | None = None) -> bool:
    tiles = 2 * (1 + epilogue.temporaries(epilogue.split(_steps(op, held))[2]))
    return (
        _l1_bytes(op, t, 1, held) <= (spec.scratchpad("l1") if l1 is None else l1)
        and 4 * t.tm * t.tk <= spec.scratchpad("l0a")
        and 4 * t.tn * t.tk <= spec.scratchpad("l0b")
        and 4 * t.sub * t.tm * t.tn <= spec.scratchpad("l0c")
        and 2 * tiles * t.rows * t.tn + 16 * t.tn <= spec.scratchpad("ub") * 15 // 16
        and (RESIDUAL not in held or t.tk >= unit_size(spec))
    )


def _steps(op: Any, held: Roles) -> tuple[str, ...]:
    """The epilogue in the unified buffer."""
    return tuple(step for step in op.epilogue if not (step == RESIDUAL and RESIDUAL in held))


def queue_cycles(
    op: Matmul, t: Tiles, spec: Any, held: Roles = NOTHING
) -> tuple[float, float, float, float, float]:
    """Estimated work of the queues: DMA of both directions together, moves, matrix, vector; and the start
    and end that nothing overlaps."""
    m_tiles, n_tiles, k_tiles = ceil_div(op.m, t.tm), ceil_div(op.n, t.tn), ceil_div(op.k, t.tk)
    inner, outer = (n_tiles, m_tiles) if t.stationary == "w" else (m_tiles, n_tiles)
    panels, blocks = ceil_div(inner, t.sub), outer
    x, w = ("x" not in held) * 2.0 * op.m * op.k, ("w" not in held) * 2.0 * op.k * op.n
    moved = {"x": x + w * panels, "w": w + x * panels, "none": x * blocks + w * panels}[t.stationary]
    residuals = _steps(op, held).count(RESIDUAL)
    out = 2.0 * op.m * op.n
    dma = (moved + out * (("y" not in held) + residuals)) / spec.dram_bytes_per_cycle
    mmads = m_tiles * n_tiles * k_tiles
    depth = op.k - (k_tiles - 1) * t.tk
    last = op.m - (m_tiles - 1) * t.tm

    def column(rows: int) -> int:
        return (k_tiles - 1) * spec.matrix_cycles(rows, t.tn, t.tk) + spec.matrix_cycles(rows, t.tn, depth)

    matrix = float(n_tiles * ((m_tiles - 1) * column(t.tm) + column(last)) + mmads * _ISSUE_MATRIX)
    if RESIDUAL in held:
        unit = unit_size(spec)
        each = spec.matrix_cycles(t.tm, unit, unit) + _ISSUE // 2
        matrix += m_tiles * n_tiles * ceil_div(t.tn, unit) * each
    a_moves, b_moves = (mmads // max(1, min(t.sub, inner)), mmads) if t.stationary == "w" else (
        mmads, mmads // max(1, min(t.sub, inner)))  # fmt: skip
    move = a_moves * (2.0 * t.tm * t.tk / spec.l1_to_l0a + _ISSUE)
    move += b_moves * (2.0 * t.tn * t.tk / spec.l1_to_l0b + _ISSUE)
    divisor = spec.transcendental_divisor
    rest = epilogue.split(_steps(op, held))[2]
    pieces = m_tiles * n_tiles * ceil_div(t.tm, t.rows)
    vector = op.m * op.n * (4.0 / spec.l0c_to_ub + epilogue.passes(rest, divisor) / spec.vector_lanes)
    vector += pieces * _ISSUE * (1 + len(rest))
    versions = 2 if 8 * t.sub * t.tm * t.tn <= spec.scratchpad("l0c") else 1
    if versions == 1:  # the next block's products wait until the accumulators are out
        store_rate = spec.l0c_to_ub if "y" in held else spec.dram_bytes_per_cycle
        out_rate = max(4.0 / spec.l0c_to_ub, 2.0 / store_rate)
        matrix += 1.2 * panels * blocks * t.sub * t.tm * t.tn * out_rate
    lines = ("x" not in held) * t.tm + ("w" not in held) * t.tn
    first = lines * t.tk * t.slices * 2.0 / spec.dram_bytes_per_cycle + 2 * spec.dram_latency * (lines > 0)
    store_rate = spec.l0c_to_ub if "y" in held else spec.dram_bytes_per_cycle
    last = t.tm * t.tn * (4.0 / spec.l0c_to_ub + epilogue.passes(rest, divisor) / spec.vector_lanes)
    last += t.rows * t.tn * 2.0 / store_rate
    if t.stationary != "none" and t.stationary not in held:
        # A panel is loaded while less than usual can run.
        width = t.sub * (t.tn if t.stationary == "w" else t.tm)
        first += 0.25 * panels * width * op.k * 2.0 / spec.dram_bytes_per_cycle
    return dma, move, matrix, vector, first + last


def estimate(op: Matmul, t: Tiles, spec: Any, held: Roles = NOTHING) -> float:
    """Cycles of the kernel: the busiest queue, some of the others' work, and what does not overlap."""
    *queues, ends = queue_cycles(op, t, spec, held)
    if "w" in held:
        # What is loaded and stored in a chain overlaps with the kernels around.
        dma, *rest = queues
        return max(rest) + 0.2 * sum(rest) + 0.02 * dma + ends
    busiest = max(queues)
    # The nearer the DMA is to the busiest queue, the more a deep ring is worth.
    jitter = 0.3 * busiest * (queues[0] / busiest) ** 3 / (t.ring * t.slices)
    return busiest + ends + 0.02 * (sum(queues) - busiest) + jitter


# --- the kernel ------------------------------------------------------------------------------------


class Emitter:
    def __init__(
        self,
        op: Matmul,
        tiles: Tiles,
        machine: Any,
        held: Roles = NOTHING,
        panels: int | None = None,
        image: Image | None = None,
        copied: int = 0,
    ):
        self.op, self.t, self.dtype, self.held = op, tiles, machine.dtype, held
        self.accumulator = "float32"
        self.image = image or Image(op.m, 1, op.k)
        """X in L1, from which tiles are taken as patches: that reads rows at any pitch at the full rate."""
        self.residual: Any = None
        self.copied = copied
        """So many of the last rows of the result are stored a second time, into a tensor of their own."""
        both = 8 * tiles.sub * tiles.tm * tiles.tn <= machine.spec.scratchpad("l0c")
        self.versions = 2 if both else 1
        piece = 2 * tiles.rows * tiles.tn * (1 + epilogue.temporaries(epilogue.split(self.steps)[2]))
        # Results on their way to DRAM, and residuals from it, should not hold up the kernels around.
        room = machine.spec.scratchpad("ub") * 3 // 8
        self.pieces = 2 if "y" in held else max(2, min(16, room // piece))
        self.panels = panels or (2 if _l1_bytes(op, tiles, 2, held) <= machine.spec.scratchpad("l1") else 1)
        if tiles.stationary == "w" and "x" in held:
            self.panels = tiles.ring
        self.unit_size, self.ub = unit_size(machine.spec), machine.spec.scratchpad("ub")
        self.biases: dict[int, Any] = {}
        self.extra: list[Any] = []
        self.k = Kernel()
        self.first_weight = self.first_bias = 0
        """Where the weights and the bias begin in their operands."""

    @property
    def steps(self) -> tuple[str, ...]:
        """The epilogue in the unified buffer."""
        return _steps(self.op, self.held)

    def _scope(self, role: str) -> str:
        return L1 if role in self.held else DRAM

    def run(self) -> Any:
        op, k = self.op, self.k
        with k:
            self.x = k.argument("X", (op.m, op.k), self.dtype, self._scope("x"))
            self._constants_and_result((op.m, op.n))
            self._panels()
        return k.function

    def _constants_and_result(self, shape: tuple[int, ...]) -> None:
        """The parameters behind X; the result, and residuals, have ``shape``."""
        op, k = self.op, self.k
        self.w = k.argument("W", (op.k * round_up(op.n, self.t.tn),), self.dtype, self._scope("w"))
        self.extra, unit = [], None
        for n, step in enumerate(s for s in op.epilogue if s in (BIAS, RESIDUAL)):
            if step == BIAS:
                self.extra.append(k.argument(f"{step}{n}", (op.n,), "float32"))
            elif RESIDUAL in self.held:
                self.residual = k.argument(f"{step}{n}", shape, self.dtype, L1)
            else:
                self.extra.append(k.argument(f"{step}{n}", shape, self.dtype))
        size = self.unit_size
        if self.residual is not None:
            unit = k.argument("unit", (size, size), self.dtype)
        self.y = k.argument("Y", shape, self.dtype, self._scope("y"))
        if self.copied:
            self.copy = k.argument("copy", (self.copied, op.n), self.dtype, L1)
        if unit is not None:
            self.unit = k.alloc(L1, (size, size), self.dtype)
            k.load((size, size), At(self.unit, lambda a, b: (a, b)), At(unit, lambda a, b: (a, b)))

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
        self._load_biases()
        with k.loop(panels, buffers=self.panels) as p:
            count = extent_at(inner, t.sub, p)
            panel = None
            if t.stationary != "none" and t.stationary not in self.held:
                held = (t.sub, steps, tk, t.tn) if by_weights else (t.sub, steps, t.tm, tk)
                panel = k.alloc(L1, held, self.dtype)
            with k.loop(outer, buffers=self.versions) as o:
                c = k.alloc(L0C, (t.sub, t.tm, t.tn), self.accumulator)
                if self.residual is not None:
                    with k.loop(count, buffers=2) as s:
                        i, j = (o, p * t.sub + s) if by_weights else (p * t.sub + s, o)
                        self._start_from_residual(i, j, s, c)
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
        x_held, w_held = "x" in self.held, "w" in self.held
        stream = None
        if by_weights:
            if not x_held:
                stream = k.alloc(L1, (t.slices, t.tm, t.tk), self.dtype)
            if not (x_held and w_held):
                with k.loop(extent_at(steps, t.slices, k1)) as k0:
                    r = k1 * t.slices + k0
                    if not w_held:
                        # The panel arrives step by step with the first block that needs it.
                        with k.when(o == 0), k.loop(count) as s:
                            self._load_weights(
                                At(panel, lambda a, b: (s, r, a, b)), p * t.sub + s, r,
                                extent_at(op.k, t.tk, r),
                            )  # fmt: skip
                    if not x_held:
                        self._load_x(At(stream, lambda a, b: (k0, a, b)), o, r)
        else:
            if not w_held:
                stream = k.alloc(L1, (deep, t.tn), self.dtype)
                self._load_weights(At(stream, lambda a, b: (a, b)), o, k1 * t.slices, depth)
            streamed = t.stationary == "none"
            if not x_held:
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
                self._move_x(a0, (rows, d), o, r, None if x_held else At(stream, lambda a, b: (k0, a, b)))
            else:
                b0 = k.alloc(L0B, (t.tk, t.tn), self.dtype)
                source = None if w_held else At(stream, lambda a, b: (k0 * t.tk + a, b))
                self._move_weights(b0, (d, width), o, r, source)
            with k.loop(count, buffers=2) as s:
                if by_weights:
                    j = p * t.sub + s
                    wide = extent_at(op.n, t.tn, j)
                    b0 = k.alloc(L0B, (t.tk, t.tn), self.dtype)
                    source = None if w_held else At(panel, lambda a, b: (s, r, a, b))
                    self._move_weights(b0, (d, wide), j, r, source)
                    extents = (rows, wide, d)
                else:
                    i = p * t.sub + s
                    high = extent_at(op.m, t.tm, i)
                    a0 = k.alloc(L0A, (t.tm, t.tk), self.dtype)
                    at = k0 if t.stationary == "none" else r
                    source = None if x_held else At(panel, lambda a, b: (s, at, a, b))
                    self._move_x(a0, (high, d), i, r, source)
                    extents = (high, width, d)
                k.mmad(
                    extents, At(c, lambda i, j, q: (s, i, j)), At(a0, lambda i, j, q: (i, q)),
                    At(b0, lambda i, j, q: (q, j)), False if self.residual is not None else r == 0,
                )  # fmt: skip

    def _move_x(self, a0: Any, box: tuple[Any, Any], i: Any, r: Any, source: At | None) -> None:
        """Row tile ``i``, step ``r``: from the kernel's tile in L1, or from X there."""
        if source is not None:
            self.k.move(box, At(a0, lambda a, b: (a, b)), source)
        else:
            self.image.patches(self.k, a0, box, i * self.t.tm, r * self.t.tk, self.x)

    def _move_weights(self, b0: Any, box: tuple[Any, Any], j: Any, r: Any, source: At | None) -> None:
        """Column panel ``j``, step ``r``: from the kernel's tile in L1, or from W there."""
        source = source or At(self.w, lambda a, b: self._weight(j, r * self.t.tk + a, b))
        self.k.move(box, At(b0, lambda a, b: (a, b)), source)

    def _start_from_residual(self, i: Any, j: Any, s: Any, c: Any) -> None:
        """Accumulators of tile (i, j) = residual times the unit matrix: exact, and the vector unit and DRAM
        have nothing to do with it."""
        op, t, k, unit = self.op, self.t, self.k, self.unit_size
        high, width = extent_at(op.m, t.tm, i), extent_at(op.n, t.tn, j)
        part = min(t.tk, round_up(t.tn, unit)) // unit * unit
        rows = Image(op.m, 1, op.n)
        b0 = k.alloc(L0B, (unit, unit), self.dtype)
        k.move((unit, unit), At(b0, lambda a, b: (a, b)), At(self.unit, lambda a, b: (a, b)))
        with k.loop(_pieces(width, part), buffers=2) as q:
            wide = _least(part, width - q * part)
            a0 = k.alloc(L0A, (t.tm, part), self.dtype)
            rows.patches(k, a0, (high, wide), i * t.tm, j * t.tn + q * part, self.residual)
            with k.loop(_pieces(wide, unit)) as u:
                n = _least(unit, wide - u * unit)
                k.mmad(
                    (high, n, n), At(c, lambda a, b, d: (s, a, q * part + u * unit + b)),
                    At(a0, lambda a, b, d: (a, u * unit + d)), At(b0, lambda a, b, d: (d, b)), True,
                )  # fmt: skip

    def _load_biases(self) -> None:
        """Biases whole, where there is room: tiles would wait for the latency of theirs."""
        op, k = self.op, self.k
        self.biases = {}
        order = [step for step in self.steps if step in (BIAS, *epilogue.TENSORS)]
        for n, step in enumerate(order):
            if step == BIAS and n < len(self.extra) and 64 * op.n * order.count(BIAS) <= self.ub:
                held = self.biases[n] = k.alloc(UB, (op.n,), "float32")
                operand, first = self.extra[n], self.first_bias
                k.load((op.n,), At(held, lambda b: (b,)), At(operand, lambda b: (first + b,)))  # noqa: B023

    def _finish(self, i: Any, j: Any, s: Any, c: Any) -> None:
        """Tile (i, j): out of the accumulators, piece by piece of some rows."""
        op, t, k = self.op, self.t, self.k
        high, width = extent_at(op.m, t.tm, i), extent_at(op.n, t.tn, j)
        bias, relu, rest = epilogue.split(self.steps)
        bias_tile = None
        operands = self.extra
        with k.loop(1, buffers=2):
            order = [step for step in self.steps if step in (BIAS, *epilogue.TENSORS)]
            tiles = {}
            for n, step in enumerate(order):
                if step == BIAS and n in self.biases:
                    tiles[n] = At(self.biases[n], lambda a, b: (j * t.tn + b,))
                elif step == BIAS:
                    tile = k.alloc(UB, (t.tn,), "float32")
                    k.load(
                        (width,), At(tile, lambda b: (b,)),
                        At(operands[n], lambda b: (self.first_bias + j * t.tn + b,)),
                    )  # fmt: skip
                    tiles[n] = At(tile, lambda a, b: (b,))
            if bias:
                bias_tile = tiles[0]
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
                bias_row = None if later is None else tiles[later]
                operands_of = epilogue.Operands(residual, bias_row)
                epilogue.apply(k, rest, y, (part, width), self.dtype, operands_of)
                k.store((part, width), at_output(self.y), At(y, lambda a, b: (a, b)))
                if self.copied:
                    begin = i * t.tm + e * t.rows - (op.m - self.copied)
                    skip = tirx.max(-begin, 0)
                    with k.when(part > skip):
                        k.store(
                            (part - skip, width),
                            At(self.copy, lambda a, b: (begin + skip + a, j * t.tn + b)),
                            At(y, lambda a, b: (skip + a, b)),
                        )  # fmt: skip


def _pieces(extent: Any, size: int) -> Any:
    return (extent + size - 1) // size


def _least(a: int, b: Any) -> Any:
    return min(a, b) if isinstance(b, int) else tirx.min(a, b)
