"""Attention forward in one kernel in float32, on CUDA cores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, T
from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cuda.attention import shapes
from hetero_tvm.schedules.cuda.attention.kernel import AttentionKernel
from hetero_tvm.schedules.cuda.attention.tile import SharedRows, shared_rows
from hetero_tvm.schedules.cuda.values import const, whole
from hetero_tvm.schedules.emit import int32

_ACROSS = 16
"""Threads that share a row."""
_MOST_RESULTS = 64
"""float32 values of the result that a thread keeps."""


@dataclass(frozen=True)
class FloatTile:
    """Shape of a block's work.

    Parameters
    ----------
    rows, keys : of one step.
    down : groups of 16 threads, each with ``rows / down`` rows.
    splits : parts of the keys that different blocks work on.
    """

    rows: int
    keys: int
    down: int
    splits: int = 1

    @property
    def held_rows(self) -> int:
        """Rows of a thread."""
        return self.rows // self.down

    @property
    def held_columns(self) -> int:
        """Keys of a thread in one step."""
        return self.keys // _ACROSS

    @property
    def choice(self) -> tuple[int, ...]:
        """The tile as a knob's choice."""
        return self.rows, self.keys, self.down, self.splits


# fmt: off
_TILES = (
    FloatTile(64, 64, 16), FloatTile(64, 32, 16), FloatTile(32, 32, 8), FloatTile(32, 64, 8),
    FloatTile(16, 32, 4), FloatTile(16, 64, 8), FloatTile(8, 64, 4), FloatTile(8, 16, 4),
)
# fmt: on


class CudaFloatAttentionSpace(DesignSpace):
    """float32 attention (see :mod:`.kernel`): all of it in float32, products on CUDA cores.

    Threads lie 16 across and some down.  Each computes rows / down x keys / 16 scores from vectors of 4
    along the head dimension, and the same rows x values / 16 of the result; weights pass through shared
    memory within a warp.  Knob ``tile``: (rows, keys, threads down, splits of the keys), see
    :class:`FloatTile`.
    """

    name = "cuda.attention_f32"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, Attention):
            return f"it serves attention, not {op.kind}"
        if op.dtype != "float32":
            return f"it computes in float32, not {op.dtype}"
        if 0 in (op.batch, op.q_len, op.kv_len, op.head_dim, op.values):
            return "an extent is zero"
        if not self._tiles(op, machine):
            return f"heads of {op.head_dim} and {op.values} values do not fit into shared memory"
        return None

    def _tiles(self, op: Attention, machine: GpuModel) -> list[FloatTile]:
        """The tiles that fit, without splits."""
        return [
            tile
            for tile in _TILES
            if 4 * sum(_sizes(op, tile)) <= machine.shared_per_block
            and tile.held_rows * _padded(op.values) // _ACROSS <= _MOST_RESULTS
        ]

    def knobs(self, op: Attention, machine: GpuModel) -> tuple[Knob, ...]:
        return (shapes.tile_knob(op, self._tiles(op, machine)),)

    def default(self, op: Attention, machine: GpuModel) -> Point:
        best = min(self._tiles(op, machine), key=lambda tile: _cost(op, tile, machine))
        splits = shapes.default_splits(op, best.rows, best.keys, machine)
        return {"tile": dataclasses.replace(best, splits=splits).choice}

    def emit(self, op: Attention, point: Point, machine: GpuModel) -> PrimFunc:
        return _Emitter(op, FloatTile(*point["tile"])).function()

    def features(self, op: Attention, point: Point, machine: GpuModel) -> list[float]:
        tile = FloatTile(*point["tile"])
        return [
            math.log2(tile.rows),
            math.log2(tile.keys),
            math.log2(tile.down),
            math.log2(tile.splits),
            math.log2(op.head_dim),
            float(op.causal),
            shapes.blocks_of(op, tile.rows) * tile.splits / machine.sms,
            math.log2(op.kv_len),
            sum(_sizes(op, tile)) / 256,
        ]


def _cost(op: Attention, tile: FloatTile, machine: GpuModel) -> float:
    """Relative time: padded work over the multiprocessors that have some, and loads per product."""
    blocks = shapes.blocks_of(op, tile.rows)
    resident = max(1, machine.shared_per_sm // (4 * sum(_sizes(op, tile)) + 1024))
    waves = -(-blocks // (machine.sms * resident)) * min(resident, -(-blocks // machine.sms))
    held, columns = tile.held_rows, tile.held_columns
    loads = (held + columns) / (held * columns) + (held + 4) / (held * 4)
    padded = whole(op.kv_len, tile.keys)
    warps = resident * tile.down // 2
    return waves * tile.rows * padded * (1 + loads) * max(1.0, 8 / warps) ** 0.5


def _padded(values: int) -> int:
    """Columns of the result that the threads of a row hold, those past its end included."""
    return whole(values, _ACROSS)


def _pitch(dim: int) -> int:
    """Words from row to row: whole vectors of 4, an odd number of them: 8 rows start in different banks."""
    return (-(-dim // 4) | 1) * 4


def _sizes(op: Attention, tile: FloatTile) -> tuple[int, int, int, int]:
    """Words of shared memory: Q, K, V, weights."""
    dim = _pitch(op.head_dim)
    rows, keys = tile.rows, tile.keys
    return rows * dim, keys * dim, keys * _padded(op.values), rows * (keys + 4)


class _Emitter(AttentionKernel):
    """Emits the kernel: 16 threads across share a row, products are float32 multiply-adds."""

    lanes = (8, 4, 2, 1)

    def __init__(self, op: Attention, tile: FloatTile):
        super().__init__(op, tile.rows, tile.keys, _ACROSS * tile.down, tile.splits)
        self.held, self.columns = tile.held_rows, tile.held_columns
        self.dim, self.pitch = -(-op.head_dim // 4) * 4, _pitch(op.head_dim)
        # A thread's columns of the result: vectors as wide as they come.
        self.width = math.gcd(4, _padded(op.values) // _ACROSS)

    @property
    def padded_values(self) -> int:
        return _padded(self.op.values)

    @property
    def held_rows(self) -> int:
        return self.held

    def buffers(self) -> tuple[SharedRows, ...]:
        op, dim = self.op, (self.op.head_dim, self.dim, self.pitch)
        values = (op.values, self.padded_values, self.padded_values)
        return tuple(
            shared_rows(rows, *extents, "float32")
            for rows, extents in ((self.rows, dim), (self.keys, dim), (self.keys, values))
        )

    def allocate(self) -> None:
        k = self.k
        weights = (self.rows * (self.keys + 4),)
        self.weights = T.alloc_buffer(weights, "float32", scope="shared.dyn")
        self.x, self.y = k.let(self.thread % _ACROSS), k.let(self.thread // _ACROSS)
        self.s_reg = k.scratch((self.held * self.columns,))
        self.o_reg = k.scratch((self.held * self.padded_values // _ACROSS,))
        self.left = k.scratch((self.held * 4,))
        self.right = k.scratch((max(self.columns * 4, self.padded_values // _ACROSS),))

    def row_at(self, r: int) -> Expr:
        return self.y * self.held + r

    def first_of_row(self) -> Expr:
        return self.x == 0

    def cells(self, body: Callable[[int, Expr, Expr], None]) -> None:
        for column in range(self.columns):
            for r in range(self.held):
                body(r, int32(r * self.columns + column), self.x + _ACROSS * column)

    def outputs(self, r: int, body: Callable[[Expr, Expr, int], None]) -> None:
        per_row = self.padded_values // _ACROSS
        for part in range(per_row // self.width):
            column = (self.x + _ACROSS * part) * self.width
            body(int32(r * per_row + part * self.width), column, self.width)

    def _vector(self, to: Buffer, at: int, source: Buffer, place: Expr, width: int) -> None:
        k = self.k
        k.store(to, k.load(source, [k.ramp(place, width)]), [k.ramp(int32(at), width)])

    def scores(self) -> None:
        k = self.k
        for at in range(self.held * self.columns):
            k.store(self.s_reg, const(0), [int32(at)])
        with k.serial(self.dim // 4) as step:
            for r in range(self.held):
                self._vector(
                    self.left, 4 * r, self.shared_q.buffer, self.row_at(r) * self.pitch + step * 4, 4
                )
            for c in range(self.columns):
                self._vector(
                    self.right, 4 * c, self.shared_k.buffer, (self.x + _ACROSS * c) * self.pitch + step * 4, 4
                )
            for r in range(self.held):
                for c in range(self.columns):
                    for e in range(4):
                        self._multiply_add(self.s_reg, r * self.columns + c, 4 * r + e, 4 * c + e)

    def _multiply_add(self, sums: Buffer, at: int, left: int, right: int) -> None:
        k = self.k
        product = k.load(self.left, [int32(left)]) * k.load(self.right, [int32(right)])
        k.store(sums, k.load(sums, [int32(at)]) + product, [int32(at)])

    def put_weight(self, at: Expr, row: int, key: Expr, weight: Expr) -> None:
        self.k.store(self.weights, weight, [self.row_at(row) * (self.keys + 4) + key])

    def accumulate(self) -> None:
        """O += P V: the threads of a row are in one warp, a barrier has made their weights visible."""
        k, per_row = self.k, self.padded_values // _ACROSS
        with k.serial(self.keys // 4) as step:
            for r in range(self.held):
                self._vector(self.left, 4 * r, self.weights, self.row_at(r) * (self.keys + 4) + step * 4, 4)
            for e in range(4):
                for part in range(0, per_row, self.width):
                    column = self.x * self.width + _ACROSS * part
                    place = (step * 4 + e) * self.padded_values + column
                    self._vector(self.right, part, self.shared_v.buffer, place, self.width)
                for r in range(self.held):
                    for c in range(per_row):
                        self._multiply_add(self.o_reg, r * per_row + c, 4 * r + e, c)
