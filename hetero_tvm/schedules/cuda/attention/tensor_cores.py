"""Attention forward in one kernel on tensor cores, for float16 and bfloat16."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, T, ptx, tirx
from hetero_tvm.machines.gpu import WARP, GpuModel
from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cuda import device
from hetero_tvm.schedules.cuda.attention import shapes
from hetero_tvm.schedules.cuda.attention.kernel import AttentionKernel
from hetero_tvm.schedules.cuda.attention.tile import SharedRows
from hetero_tvm.schedules.cuda.threads import barrier
from hetero_tvm.schedules.cuda.values import const, whole
from hetero_tvm.schedules.emit import int32

_PAD = 8
"""Values between rows in shared memory: rows start in different banks, 16-byte aligned."""
_WARPS, _KEYS = (4, 2, 8, 1), (64, 32, 128, 16)
"""Warps of a block and keys of a step to choose from, the likely ones first."""
_FRAGMENT = 16
"""Extents of a fragment of ``mma``: those of tiles are multiples."""
_HELD_DIM = 128
"""Up to this head dimension the queries' fragments stay in registers."""
_KINDS = {"float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class TensorCoreTile:
    """Shape of a block's work.

    Parameters
    ----------
    warps : of the block.
    keys : of one step.
    splits : parts of the keys that different blocks work on.
    fragments : of 16 rows each, that a warp works on: 1 or 2.
    """

    warps: int
    keys: int
    splits: int = 1
    fragments: int = 1

    @property
    def rows(self) -> int:
        """Rows of the block."""
        return 16 * self.warps * self.fragments

    @property
    def choice(self) -> tuple[int, ...]:
        """The tile as a knob's choice; a fourth number stands for more than one fragment a warp."""
        plain = (self.warps, self.keys, self.splits)
        return (*plain, self.fragments) if self.fragments > 1 else plain

    @classmethod
    def of(cls, choice: tuple[int, ...]) -> TensorCoreTile:
        """The tile of a knob's choice."""
        warps, keys, splits, *fragments = choice
        return cls(warps, keys, splits, *fragments)


class CudaAttentionSpace(DesignSpace):
    """Attention with float32 scores, sums and accumulators (see :mod:`.kernel`).

    Each warp keeps 16 or 32 rows, their scores and their results in registers::

        Q fragments: ldmatrix, once
        S = Q K^T: ldmatrix, mma.sync m16n8k16
        maximum and sum of each row: two shuffles
        P, in the accumulators' registers, is the next product's fragment as it is
        O = O * correction + P V: ldmatrix.trans, mma.sync

    Rows in shared memory are padded, so that ldmatrix meets no bank twice; head dimensions are filled up
    to multiples of 16 with zeros there.  With 16 rows a warp shared memory delivers fragments (512 bytes for
    two products) no faster than tensor cores use them up; 32 rows halve what is read.  Knob ``tile``:
    (warps, keys, splits of the keys), and 2 at the end for 32 rows a warp (see :class:`TensorCoreTile`).
    """

    name = "cuda.attention"
    version = 2

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, Attention):
            return f"it serves attention, not {op.kind}"
        if op.dtype not in _KINDS:
            return f"tensor cores take float16 and bfloat16 here, not {op.dtype}"
        if 0 in (op.batch, op.q_len, op.kv_len, op.head_dim, op.values):
            return "an extent is zero"
        if max(op.head_dim, op.values) > 256:
            return f"the head dimensions {op.head_dim} and {op.values} are above 256"
        return None

    def _tiles(self, op: Attention, machine: GpuModel) -> list[TensorCoreTile]:
        """The tiles that fit, without splits."""
        dim = whole(max(op.head_dim, op.values), _FRAGMENT)
        most = 128 if dim <= 64 else 64 if dim <= 128 else 32
        every = [
            TensorCoreTile(warps, keys, fragments=fragments)
            for fragments in (1, 2)
            for keys in _KEYS
            for warps in _WARPS
            if keys <= most
        ]
        every = [tile for tile in every if _shared(op, tile, 1) <= machine.shared_per_block]
        return [tile for tile in every if tile.fragments == 1 or _is_worth_two_fragments(op, tile, dim)]

    def knobs(self, op: Attention, machine: GpuModel) -> tuple[Knob, ...]:
        return (shapes.tile_knob(op, self._tiles(op, machine)),)

    def default(self, op: Attention, machine: GpuModel) -> Point:
        found = self._tiles(op, machine)
        large = TensorCoreTile(warps=4, keys=64, fragments=2)
        if large in found and op.kv_len > 64 and shapes.blocks_of(op, large.rows) >= 2 * machine.sms:
            if _stages(op, large, machine) == 2:
                return {"tile": large.choice}
        wanted = next((w for w in (8, 4) if shapes.blocks_of(op, 16 * w) >= 2 * machine.sms), 2)
        if op.head_dim > 64 and wanted == 8:
            wanted = 4
        warps = min(wanted, 1 << max(0, (shapes.rows_of(op) - 1) // 16).bit_length())
        keys = 64 if op.kv_len > 32 else 32 if op.kv_len > 16 else 16
        keys = min(keys, max(tile.keys for tile in found))
        splits = shapes.default_splits(op, 16 * warps, keys, machine)
        return {"tile": TensorCoreTile(warps, keys, splits).choice}

    def emit(self, op: Attention, point: Point, machine: GpuModel) -> PrimFunc:
        tile = TensorCoreTile.of(point["tile"])
        return _Emitter(op, tile, _stages(op, tile, machine)).function()

    def features(self, op: Attention, point: Point, machine: GpuModel) -> list[float]:
        tile = TensorCoreTile.of(point["tile"])
        return [
            math.log2(tile.warps),
            math.log2(tile.keys),
            math.log2(tile.splits),
            math.log2(op.head_dim),
            float(op.causal),
            shapes.blocks_of(op, tile.rows) * tile.splits / machine.sms,
            math.log2(op.kv_len),
            _shared(op, tile, _stages(op, tile, machine)) / 1024,
            float(tile.fragments),
        ]


def _stage(op: Attention, keys: int) -> int:
    """Elements of one stage: rows of K, then rows of V."""
    return keys * (whole(op.head_dim, _FRAGMENT) + whole(op.values, _FRAGMENT) + 2 * _PAD)


def _is_worth_two_fragments(op: Attention, tile: TensorCoreTile, dim: int) -> bool:
    """Whether 32 rows a warp have work, and registers hold their keys without spills."""
    light = not (op.mask or op.softcap or op.window)
    keys = 64 if dim <= 64 or (dim <= 128 and light) else 32 if dim <= 128 else 0
    return tile.keys <= keys and tile.warps >= 4 and shapes.rows_of(op) > 16 * tile.warps


def _holds_queries(op: Attention, tile: TensorCoreTile) -> bool:
    """Whether the queries' fragments stay in registers."""
    return whole(op.head_dim, _FRAGMENT) * tile.fragments <= _HELD_DIM


def _query_place(op: Attention, tile: TensorCoreTile, stages: int) -> int:
    """Element at which the rows of Q begin.

    Once their fragments are in registers the second stage takes their place, unless its padding is
    cleared while they are still there.
    """
    padded = op.head_dim % 16 or op.values % 16
    return _stage(op, tile.keys) * (1 if _holds_queries(op, tile) and not padded else stages)


def _shared(op: Attention, tile: TensorCoreTile, stages: int) -> int:
    """Bytes of shared memory."""
    queries = _query_place(op, tile, stages) + tile.rows * (whole(op.head_dim, _FRAGMENT) + _PAD)
    return 2 * max(stages * _stage(op, tile.keys), queries)


def _stages(op: Attention, tile: TensorCoreTile, machine: GpuModel) -> int:
    """Two, where there are blocks to fetch ahead and a multiprocessor still holds 8 warps."""
    shared = _shared(op, tile, 2)
    resident = machine.shared_per_sm // (shared + 1024) * tile.warps
    fits = shared <= machine.shared_per_block and (resident >= 8 or tile.warps < 4)
    return 2 if fits and op.kv_len > tile.keys else 1


class _Emitter(AttentionKernel):
    """Emits the kernel: a warp has 16 or 32 rows, products are ``mma`` on fragments."""

    lanes = (1, 2)

    def __init__(self, op: Attention, tile: TensorCoreTile, stages: int):
        super().__init__(op, tile.rows, tile.keys, WARP * tile.warps, tile.splits)
        self.dim, self.dtype, self.stages = whole(op.head_dim, _FRAGMENT), op.dtype, stages
        self.tile, self.fragments = tile, tile.fragments

    @property
    def held_rows(self) -> int:
        return 2 * self.fragments

    @property
    def padded_values(self) -> int:
        return whole(self.op.values, _FRAGMENT)

    def buffers(self) -> tuple[SharedRows, SharedRows, SharedRows]:
        nbytes = _shared(self.op, self.tile, self.stages)
        self.memory = T.alloc_buffer((nbytes // 2,), self.dtype, scope="shared.dyn")
        place = _query_place(self.op, self.tile, self.stages)
        query = SharedRows(self.memory, self.op.head_dim, self.dim, self.dim + _PAD, place)
        return query, *self.stage(int32(0))

    def stage(self, number: Expr) -> tuple[SharedRows, SharedRows]:
        op, values, pitch = self.op, self.padded_values, self.dim + _PAD
        first = number * _stage(op, self.keys)
        return (
            SharedRows(self.memory, op.head_dim, self.dim, pitch, first),
            SharedRows(self.memory, op.values, values, values + _PAD, first + self.keys * pitch),
        )

    def allocate(self) -> None:
        k = self.k
        self.warp, self.lane = k.let(self.thread // 32), k.let(self.thread % 32)
        fragments, self.held = self.fragments, _holds_queries(self.op, self.tile)
        self.q_reg = k.scratch((fragments * (self.dim // 2 if self.held else 8),), self.dtype)
        self.b_reg = k.scratch((8,), self.dtype)
        self.s_reg = k.scratch((fragments * self.keys // 2,))
        self.p_reg = k.scratch((fragments * self.keys // 2,), self.dtype)
        self.o_reg = k.scratch((fragments * self.padded_values // 2,))

    def row_at(self, r: int) -> Expr:
        return self.warp * (16 * self.fragments) + self.lane // 4 + 8 * r

    def first_of_row(self) -> Expr:
        return self.lane % 4 == 0

    def when_scaled(self) -> AbstractContextManager[None]:
        """Skip the products of a warp none of whose maxima changed: they rarely do after the first blocks."""
        scales = [self.k.load(self.scale, [int32(r)]) for r in range(2 * self.fragments)]
        if self.fragments == 2:  # factors are at most one, and so is a product
            scales = [scales[0] * scales[2], scales[1] * scales[3]]
        return self.k.when(device.value("htvm_any_changes", *scales, dtype="int32") != 0)

    def cells(self, body: Callable[[int, Expr, Expr], None]) -> None:
        with self.k.unroll(self.keys // 8) as part:
            for r in range(2 * self.fragments):
                for e in range(2):
                    at = r // 2 * (self.keys // 2) + part * 4 + r % 2 * 2 + e
                    body(r, at, part * 8 + self.lane % 4 * 2 + e)

    def outputs(self, r: int, body: Callable[[Expr, Expr, int], None]) -> None:
        with self.k.unroll(self.padded_values // 8) as part:
            at = r // 2 * (self.padded_values // 2) + part * 4 + r % 2 * 2
            body(at, part * 8 + self.lane % 4 * 2, 2)

    def _ldmatrix(self, transposed: bool, to: Buffer, to_at: Expr, rows: SharedRows, at: Expr) -> None:
        """Load four 8 x 8 matrices from element ``at`` of shared memory to registers."""
        source = rows.buffer.access_ptr("r")
        call = ptx.ptx_legacy_ldmatrix(self.dtype, transposed, 4, ".b16", to.data, to_at, source, at)
        T.evaluate(call)

    def _mma(self, a: Buffer, a_at: Expr, b_at: int, c: Buffer, c_at: Expr) -> None:
        """Add the product of 16 x 16 and 16 x 8 values in registers to 16 x 8 sums."""
        kind = _KINDS[self.dtype]
        shape = ("float32", "m16n8k16", "row", "col", kind, kind, "fp32")
        registers = (a.data, a_at, self.b_reg.data, int32(b_at), c.data, c_at)
        T.evaluate(ptx.ptx_legacy_mma(*shape, *registers, False))

    def _query_fragments(self, step: Expr) -> None:
        """Load the queries' fragments of one step along the head dimension."""
        for part in range(self.fragments):
            row = self.warp * (16 * self.fragments) + 16 * part + self.lane % 16
            at = self.shared_q.at(row, step * 16 + self.lane // 16 * 8)
            self._ldmatrix(False, self.q_reg, self._query_at(part, step), self.shared_q, at)

    def _query_at(self, part: int, step: Expr) -> Expr:
        """Place of a fragment in the queries' registers."""
        return part * (self.dim // 2) + step * 8 if self.held else int32(part * 8)

    def queries_ready(self) -> None:
        if self.held:
            with self.k.unroll(self.dim // 16) as step:
                self._query_fragments(step)
            # Values may take the place of the queries in shared memory from here on.
            barrier()

    def scores(self) -> None:
        """S = Q K^T: keys lie as columns of the second operand already; one ldmatrix serves 16 keys."""
        k, lane = self.k, self.lane
        with k.unroll(self.fragments * self.keys // 2) as i:
            k.store(self.s_reg, const(0), [i])
        with k.unroll(self.dim // 16) as step:
            if not self.held:
                self._query_fragments(step)
            with k.unroll(self.keys // 16) as pair:
                row = pair * 16 + lane // 16 * 8 + lane % 8
                column = step * 16 + lane // 8 % 2 * 8
                self._ldmatrix(False, self.b_reg, int32(0), self.shared_k, self.shared_k.at(row, column))
                for part in range(self.fragments):
                    at = part * (self.keys // 2) + pair * 8
                    for half in range(2):
                        self._mma(self.q_reg, self._query_at(part, step), 4 * half, self.s_reg, at + half * 4)

    def put_weight(self, at: Expr, row: int, key: Expr, weight: Expr) -> None:
        self.k.store(self.p_reg, tirx.Cast(self.dtype, weight), [at])

    def accumulate(self) -> None:
        """O += P V: V lies in rows of keys, ldmatrix transposes it on the way; one serves 16 columns."""
        k, lane = self.k, self.lane
        with k.unroll(self.keys // 16) as step, k.unroll(self.padded_values // 16) as pair:
            row, column = step * 16 + lane % 16, pair * 16 + lane // 16 * 8
            self._ldmatrix(True, self.b_reg, int32(0), self.shared_v, self.shared_v.at(row, column))
            for part in range(self.fragments):
                p_at = part * (self.keys // 2) + step * 8
                o_at = part * (self.padded_values // 2) + pair * 8
                for half in range(2):
                    self._mma(self.p_reg, p_at, 4 * half, self.o_reg, o_at + half * 4)
