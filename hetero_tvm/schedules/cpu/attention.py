"""Fused attention: scores never leave the core's caches.

Loop structure::

    parallel over batch x heads x pieces of the query rows:
        pack K of this head as KT[S / NK][D][NK] and V as [D / NV][S][NV]        (L1 or L2)
        for each tile of MR query rows:
            for each panel of NK keys:  acc[MR][NK] = Q KT, times scale, plus mask -> P[MR][S]   (L1)
            for each row of P:          max, exp, sum                     (schedules/cpu/rows/softmax.py)
            for each panel of NV values: acc[MR][NV] = P V, times 1 / sum -> O
        the last Sq % MR query rows: one more nest of that height

Both products run in the register tile of ``schedules/cpu/products/tile.py`` on operands that sit in L1/L2;
the scratch of a thread is MR x S scores plus one head's packed K and V.  K must be packed because lanes
run over keys; V because rows of a wide QKV tensor would fall into few cache sets.  A causal mask
skips the panels of keys that no row of the tile can see, before a sliding window too.  Queries, keys
and values are read where they lie (any strides between heads and rows), so nothing is transposed,
sliced or repeated around the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hetero_tvm.codegen import transpose, vector_math
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.attention import Attention, Heads
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cpu.products import pack, tile
from hetero_tvm.schedules.cpu.rows import row
from hetero_tvm.schedules.cpu.rows.softmax import LOWEST
from hetero_tvm.schedules.emit import LINE_FLOATS, Kernel, chunks, constant, int32, tirx

_SCORES_LIMIT = 256 << 10
"""Bytes of scores per tile that still make sense in L2; longer rows are refused."""


class AttentionSpace(DesignSpace):
    """Knobs: query rows per tile, vectors per key panel, unrolling, pieces of a head's queries."""

    name = "cpu.attention"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Attention):
            return "not an attention"
        if op.dtype != "float32":
            return f"the operands are {op.dtype}"
        if 0 in (op.batch, op.heads, op.q_len, op.kv_len, op.head_dim, op.values):
            return "an extent is zero"
        if op.kv_len * 4 * 2 > _SCORES_LIMIT:
            return f"{op.kv_len} keys: the scores of two rows do not fit the {_SCORES_LIMIT >> 10} KiB tile"
        if op.causal and op.q_len > op.kv_len:
            return f"{op.q_len} queries and {op.kv_len} keys: the first query of a causal mask sees no key"
        return None

    def knobs(self, op: Attention, machine: CpuModel) -> tuple[Knob, ...]:
        tiles = []
        for vectors in (2, 1, 4, 3):
            for rows in (12, 8, 6, 4, 3, 2, 1):
                value_vectors = min(vectors, -(-op.values // machine.lanes))
                fits = rows * vectors + vectors + 1 <= machine.registers
                fits = fits and rows * value_vectors + value_vectors + 1 <= machine.registers
                if fits and rows <= op.q_len and rows * op.kv_len * 4 <= _SCORES_LIMIT:
                    tiles.append((rows, vectors))
        pieces = tuple(p for p in (1, 2, 4) if p <= op.q_len)
        return (
            Knob("tile", tuple(tiles)),
            Knob("pieces", pieces),
            Knob("unroll", (4, 8, 2)),
        )

    def default(self, op: Attention, machine: CpuModel) -> Point:
        def cost(shape: tuple[int, int], pieces: int) -> float:
            rows, vectors = shape
            columns = vectors * machine.lanes
            per_k = max(rows * vectors / machine.fma_units, 1.12 * machine.fma_latency, 0.5 * rows + vectors)
            per_row = per_k / rows / vectors * (1 + (-op.kv_len % columns) / op.kv_len)
            rows_per_piece = -(-op.q_len // pieces)
            waste = -(-rows_per_piece // rows) * rows / rows_per_piece
            work = op.batch * op.heads * pieces
            balance = -(-work // machine.threads) * machine.threads / work
            packing = 1 + 0.12 * (pieces - 1)
            return per_row * (0.7 + 0.3 * waste) * balance * packing

        tiles, pieces = (knob.choices for knob in self.knobs(op, machine)[:2])
        shape, piece_count = min(((t, p) for t in tiles for p in pieces), key=lambda c: cost(*c))
        return {"tile": shape, "pieces": piece_count, "unroll": 4}

    def features(self, op: Attention, point: Point, machine: CpuModel) -> list[float]:
        rows, vectors = point["tile"]
        columns = vectors * machine.lanes
        work = op.batch * op.heads * point["pieces"]
        busy = rows * vectors / machine.fma_units
        return [
            math.log2(op.q_len), math.log2(op.kv_len), op.head_dim, op.heads, op.batch,
            rows, vectors, rows * vectors, point["pieces"], point["unroll"],
            op.q_len % rows / rows, op.kv_len % columns / columns,
            work % machine.threads,
            min(1.0, busy / max(1.12 * machine.fma_latency, 0.5 * rows + vectors)),
        ]  # fmt: skip

    def emit(self, op: Attention, point: Point, machine: CpuModel) -> Any:
        lanes, dim, values = machine.lanes, op.head_dim, op.values
        rows, key_vectors = point["tile"]
        value_vectors = min(key_vectors, -(-values // lanes))
        key_columns, value_columns = key_vectors * lanes, value_vectors * lanes
        key_panels, value_panels = -(-op.kv_len // key_columns), -(-values // value_columns)
        padded_keys = key_panels * key_columns
        group = op.heads // op.kv_heads
        pieces = point["pieces"]

        k = Kernel()
        with k:
            operands = [k.argument(o.name, o.shape) for o in op.inputs]
            out = k.argument("O", op.output.shape)
            mask = operands.pop() if op.mask else None
            flat = [k.view(x, (math.prod(shape),)) for x, shape in zip(operands, op.shapes, strict=True)]
            query_at, key_at, value_at = op.heads_at
            query, key, value = (flat[place.operand] for place in op.heads_at)

            work_items = op.batch * op.heads * pieces
            with k.imported(transpose.ir(lanes)), k.parallel(work_items, op.flops) as work:
                piece = tirx.floormod(work, pieces) if pieces > 1 else int32(0)
                head = tirx.floormod(tirx.floordiv(work, pieces), op.heads)
                batch = tirx.floordiv(work, pieces * op.heads)
                kv_head = tirx.floordiv(head, group)
                packed_keys = k.scratch((key_panels, dim, key_columns))
                packed_values = k.scratch((value_panels, op.kv_len, value_columns))
                scores = k.scratch((rows, padded_keys))
                factors = k.scratch((rows,))
                query_base = k.let(_base(query_at, batch, head))
                key_base, value_base = (k.let(_base(x, batch, kv_head)) for x in (key_at, value_at))
                pack.transposed(
                    k, packed_keys, key, key_base, key_at.row, op.kv_len, key_columns, dim, lanes
                )
                pack.rows(
                    k, packed_values, value, value_base, value_at.row, op.kv_len, value_columns, values, lanes
                )

                # The rows of a head are short pieces far apart, half of them just written by another core:
                # each tile of queries fetches as many rows of the next head.
                after = tirx.min(work + 1, int32(work_items - 1))
                heads_after = [
                    (buffer, place, k.let(_base(place, tirx.floordiv(after, op.heads), number)), extent)
                    for buffer, place, number, extent in (
                        (query, query_at, tirx.floormod(after, op.heads), dim),
                        (key, key_at, tirx.floordiv(tirx.floormod(after, op.heads), group), dim),
                        (value, value_at, tirx.floordiv(tirx.floormod(after, op.heads), group), values),
                    )
                    if pieces == 1 and op.q_len == op.kv_len
                ]

                def fetch_ahead(first_row: Any, height: int) -> None:
                    for buffer, place, base, extent in heads_after:
                        with k.serial(height) as r:
                            for start in range(0, extent, LINE_FLOATS):
                                k.prefetch(buffer, [base + (first_row + r) * place.row + start])

                def query_tile(first_row: Any, height: int) -> None:
                    fetch_ahead(first_row, height)
                    if op.causal:
                        seen = first_row + height + (op.kv_len - op.q_len)
                        panels = tirx.floordiv(seen + (key_columns - 1), int32(key_columns))
                    else:
                        panels = key_panels
                    skipped: Any = 0
                    if op.window:
                        oldest = first_row + (op.kv_len - op.q_len - op.window + 1)
                        skipped = k.let(tirx.floordiv(tirx.max(oldest, int32(0)), int32(key_columns)))
                    with k.serial(panels - skipped) as panel:
                        score_panel(first_row, height, skipped + panel)
                    start = skipped * key_columns
                    with k.serial(height) as r:
                        length = panels * key_columns - start if op.causal else op.kv_len
                        _softmax_row(k, op, scores, factors, r, start, length, lanes)
                    depth = tirx.min(panels * key_columns, int32(op.kv_len)) if op.causal else op.kv_len
                    with k.serial(value_panels) as panel:
                        value_panel(first_row, height, panel, start, depth - start)

                def score_panel(first_row: Any, height: int, panel: Any) -> None:
                    acc = k.scratch((height, key_columns))
                    tile.accumulate(
                        k, acc, height, key_vectors, lanes, dim, point["unroll"],
                        a_at=lambda r, d: k.load(query, [query_base + (first_row + r) * query_at.row + d]),
                        b_at=lambda d, at: k.load(packed_keys, [panel, d, at]),
                    )  # fmt: skip

                    def put(r: Any, column: Any, lanes_: int, value_: Any) -> None:
                        at = panel * key_columns + column
                        value_ = value_ * k.splat(op.scale / (op.softcap or 1.0), lanes_)
                        if op.softcap:
                            value_ = vector_math.tanh(value_) * k.splat(op.softcap, lanes_)
                        if mask is not None:
                            value_ = value_ + _mask_at(k, op, mask, batch, head, first_row + r, at, lanes_)
                        if op.causal:
                            newest = first_row + r + (op.kv_len - op.q_len)
                            visible = k.ramp(at, lanes_) <= k.splat(newest, lanes_)
                            if op.window:
                                visible = visible & (k.ramp(at, lanes_) > k.splat(newest - op.window, lanes_))
                            value_ = tirx.Select(visible, value_, k.splat(_hidden(op), lanes_))
                        k.store(scores, value_, [r, k.ramp(at, lanes_)])

                    def write(columns: int) -> None:
                        tile.store(k, acc, height, columns, lanes, put)
                        if op.causal and columns < key_columns:  # whole panels are read below
                            with k.serial(height) as r:
                                for start, width in chunks(key_columns - columns, lanes):
                                    at = k.ramp(panel * key_columns + columns + start, width)
                                    k.store(scores, k.splat(_hidden(op), width), [r, at])

                    last = op.kv_len - (key_panels - 1) * key_columns
                    masked_tail = mask is not None and op.mask[3] != 1 and last != key_columns
                    if masked_tail and key_panels == 1:
                        write(last)
                    elif masked_tail:
                        k.branch(panel < key_panels - 1, lambda: write(key_columns), lambda: write(last))
                    else:
                        write(key_columns)

                def value_panel(first_row: Any, height: int, panel: Any, start: Any, depth: Any) -> None:
                    acc = k.scratch((height, value_columns))
                    a_at = lambda r, j: k.load(scores, [r, start + j])  # noqa: E731
                    b_at = lambda j, at: k.load(packed_values, [panel, start + j, at])  # noqa: E731
                    tile.accumulate(k, acc, height, value_vectors, lanes, depth, point["unroll"], a_at, b_at)

                    def put(r: Any, column: Any, lanes_: int, value_: Any) -> None:
                        at = k.ramp(head * values + panel * value_columns + column, lanes_)
                        scaled = value_ * k.splat(k.load(factors, [r]), lanes_)
                        k.store(out, scaled, [batch, first_row + r, at])

                    last = values - (value_panels - 1) * value_columns
                    if last == value_columns or value_panels == 1:
                        tile.store(k, acc, height, min(last, value_columns), lanes, put)
                    else:
                        k.branch(
                            panel < value_panels - 1,
                            lambda: tile.store(k, acc, height, value_columns, lanes, put),
                            lambda: tile.store(k, acc, height, last, lanes, put),
                        )

                full, rest = divmod(op.q_len, rows)
                first = tirx.floordiv(piece * full, pieces)
                count = tirx.floordiv((piece + 1) * full, pieces) - first
                if full:
                    with k.serial(full if pieces == 1 else count) as t:
                        query_tile((first + t) * rows, rows)
                if rest and pieces == 1:
                    query_tile(int32(full * rows), rest)
                elif rest:
                    with k.when(tirx.EQ(piece, int32(pieces - 1))):
                        query_tile(int32(full * rows), rest)
        return k.function


def _base(place: Heads, batch: Any, head: Any) -> Any:
    """Position of the first element of one head."""
    return place.offset + batch * place.batch + head * place.head


def _mask_at(
    k: Kernel, op: Attention, mask: Any, batch: Any, head: Any, query_row: Any, column: Any, width: int
) -> Any:
    where = (batch if op.mask[0] == op.batch else tirx.floormod(batch, op.mask[0]), head, query_row)
    at = [int32(0) if extent == 1 else x for extent, x in zip(op.mask[:3], where, strict=True)]
    if op.mask[3] == 1:
        return k.splat(k.load(mask, [*at, int32(0)]), width)
    return k.load(mask, [*at, k.ramp(column, width)])


def _hidden(op: Attention) -> float:
    """The score of a key that a query does not see, and the start of a row's maximum."""
    return -math.inf if op.zero_masked else LOWEST


def _softmax_row(
    k: Kernel, op: Attention, scores: Any, factors: Any, r: Any, start: Any, length: Any, lanes: int
) -> None:
    """exp(score - max) in place over ``length`` keys from ``start``; ``factors[r]`` = 1 / sum.

    A run-time ``length`` must be a multiple of ``lanes``.
    """

    def each(body: Callable[[Any, int, int], None]) -> None:
        if isinstance(length, int):
            row.each_vector(k, length, lanes, body)
        else:
            with k.serial(tirx.floordiv(length, int32(lanes))) as v:
                body(v * lanes, lanes, 0)

    largest = row.RowReduction(k, lanes, row.maximum, _hidden(op))
    each(lambda c, width, slot: largest.take(k.load(scores, [r, k.ramp(start + c, width)]), width, slot))
    peak = k.let(largest.finish())
    finite_peak = k.let(tirx.max(constant(LOWEST), peak))
    total = row.RowReduction(k, lanes, row.add, 0.0)

    def exponent(c: Any, width: int, slot: int) -> None:
        at = [r, k.ramp(start + c, width)]
        value = k.let(vector_math.softmax_exp(k.load(scores, at), k.splat(finite_peak, width)))
        k.store(scores, value, at)
        total.take(value, width, slot)

    each(exponent)
    factor = constant(1.0) / total.finish()
    if op.zero_masked:
        factor = tirx.Select(tirx.EQ(peak, constant(-math.inf)), constant(0.0), factor)
    k.store(factors, factor, [r])
