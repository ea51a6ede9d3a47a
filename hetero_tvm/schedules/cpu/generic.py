"""The generic schedule, for kernels of operators without a space of their own.

Reductions that read each term once, transpositions, joins, borders, and axes that are divided or of odd
lengths are emitted as loops of their own (``programs/program.py``).  For the others, in order:

1. Elementwise producers are inlined into their consumers.
2. A block without reduction: all loops but the innermost are fused and run in parallel, the
   innermost is vectorised.
3. A block with a reduction whose innermost spatial axis is contiguous: the same, with the reduction
   between them and the accumulators in registers (a second spatial axis is unrolled for reuse).
4. A reduction over the contiguous axis itself (a row sum): rows in parallel, partial sums in vector
   lanes.

Each step that a block's shape does not allow is left out for that block; the kernel stays correct.
"""

from __future__ import annotations

import math

from hetero_tvm.host.tvm import Expr, PrimFunc, SBlockRealize, Schedule, ScheduleError, Var, s_tir, tirx, tvm
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.programs import program
from hetero_tvm.schedules.cpu.programs.long_sums import accumulate_in_double, is_long, without_rounding
from hetero_tvm.schedules.nests.growth import written_once

Block, Loop = s_tir.schedule.SBlockRV, s_tir.schedule.LoopRV

_PARALLEL_WORTH = 8192
"""Loop iterations below which waking the other threads costs more than it saves."""

_PIECES = 8
"""Rows for each thread from which on they are shared out whole."""

_ROWS = 4
"""Rows of a register tile: accumulators that share one loaded vector."""


def schedule(function: PrimFunc, machine: CpuModel) -> PrimFunc:
    """Schedule one PrimFunc; returns one with the same signature and attributes."""
    emitted = program.emit(function, machine)
    if emitted is not None:
        return emitted
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    try:
        sch = Schedule(module)
        sch.get_sblock("root")
    except (ValueError, RuntimeError):  # hand-written loops: no blocks to schedule
        return function
    _inline(sch)
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        loops = sch.get_loops(block)
        if not loops or not all(_extent(sch, loop) for loop in loops):
            continue
        try:
            _schedule_block(sch, block, machine)
        except ScheduleError:
            continue  # the block keeps the steps that succeeded before
    result = without_rounding(sch.mod["main"])
    if not (function.attrs and "global_symbol" in function.attrs):
        result = result.without_attr("global_symbol")
    return result.with_attr("tirx.noalias", True)


def _inline(sch: Schedule) -> None:
    """Inline elementwise producers into their consumers."""
    root = sch.get_sblock("root")
    kept = written_once(sch, root)
    temporary = set(sch.get(root).alloc_buffers)
    for block in list(sch.get_child_blocks(root)):
        written = {region.source for region in sch.get(block).writes}
        if _reduction(sch, block) or written & set(kept) or written.isdisjoint(temporary):
            continue
        try:
            sch.compute_inline(block)
        except ScheduleError:
            pass  # an output, or used in a way that cannot be inlined


def _schedule_block(sch: Schedule, block: Block, machine: CpuModel) -> None:
    """Schedule one block by the strategy that its loops allow."""
    loops = sch.get_loops(block)
    kinds = _kinds(sch, block)
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "S"]
    reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "R"]
    work = math.prod(_extent(sch, loop) for loop in loops)
    if "?" in kinds or not spatial:
        return
    if not reduced:
        _spatial(sch, spatial, work, machine)
    elif contiguous_over(sch, block, spatial[-1]) and width_of(_extent(sch, spatial[-1]), machine) >= 4:
        _tiled_reduction(sch, block, spatial, reduced, work, machine)
    else:
        _row_reduction(sch, block, spatial, reduced, work, machine)


def _spatial(sch: Schedule, loops: list[Loop], work: int, machine: CpuModel) -> None:
    """``parallel(outer) . vector``, or ``parallel(rows) . vectors of a row`` where there are rows for all
    threads: what only rows decide (the place that a row is gathered from) is computed once for each."""
    width = width_of(_extent(sch, loops[-1]), machine)
    *outer, inner = loops
    rows = math.prod(_extent(sch, loop) for loop in outer)
    if width > 1:
        more, inner = sch.split(inner, [None, width])
        outer = outer if rows >= _PIECES * machine.threads else [*outer, more]
        sch.vectorize(inner)
    elif rows < machine.threads:
        outer = loops  # one long row of an odd length
    if outer:
        _parallel(sch, sch.fuse(*outer), work)


def _tiled_reduction(
    sch: Schedule, block: Block, spatial: list[Loop], reduced: list[Loop], work: int, machine: CpuModel
) -> None:
    """``parallel(outer) . reduce . unroll(rows) . vector`` with the tile in registers."""
    width = width_of(_extent(sch, spatial[-1]), machine)
    *outer, last = spatial
    more, lanes = sch.split(last, [None, width])
    rows = []
    if outer:
        tile = max(f for f in range(1, _ROWS + 1) if _extent(sch, outer[-1]) % f == 0)
        if tile > 1:
            coarse, fine = sch.split(outer[-1], [None, tile])
            outer, rows = [*outer[:-1], coarse], [fine]
    outer = [*outer, more]
    sch.reorder(*outer, *reduced, *rows, lanes)
    fused = sch.fuse(*outer)
    for row in rows:
        sch.unroll(row)
    _parallel(sch, fused, work)  # before the next step, whose blocks are no complete ones
    reduce_in_registers(sch, block, fused, reduced[0], lanes)


def reduce_in_registers(sch: Schedule, block: Block, within: Loop, terms: Loop, lanes: Loop) -> Block:
    """Let a reduction over ``terms`` keep the vectors of its results, ``lanes``, in registers, of its own for
    each iteration of ``within``; the block that copies them to where they belong."""
    results = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(results, within)
    if is_long(sch, block):
        accumulate_in_double(sch, block)
    sch.vectorize(sch.get_loops(results)[-1])
    sch.vectorize(lanes)
    start = sch.decompose_reduction(block, terms)
    sch.vectorize(sch.get_loops(start)[-1])
    return results


def _row_reduction(
    sch: Schedule, block: Block, spatial: list[Loop], reduced: list[Loop], work: int, machine: CpuModel
) -> None:
    """``parallel(rows) . reduce in vector lanes . fold the lanes``."""
    width = width_of(_extent(sch, reduced[-1]), machine)
    sch.reorder(*spatial, *reduced)
    rows = sch.fuse(*spatial)
    if width >= 4:
        _, lanes = sch.split(reduced[-1], [None, width])
        partial = sch.rfactor(lanes, 0)
        if is_long(sch, partial):
            accumulate_in_double(sch, partial)
        sch.vectorize(sch.get_loops(partial)[-1])
    _parallel(sch, rows, work)


def _parallel(sch: Schedule, loop: Loop, work: int) -> None:
    """Share a loop among the threads where that is worth it."""
    if work >= _PARALLEL_WORTH and _extent(sch, loop) > 1:
        sch.parallel(loop)


def width_of(extent: int, machine: CpuModel) -> int:
    """Vector length of a loop: its largest divisor up to two registers; 1 when none is worth it."""
    best = max(d for d in range(1, 2 * machine.lanes + 1) if extent % d == 0)
    return best if best >= 4 else 1


def _extent(sch: Schedule, loop: Loop) -> int:
    """Extent of a loop; 0 when it is not constant."""
    extent = sch.get(loop).extent
    return int(extent) if isinstance(extent, tirx.IntImm) else 0


def _reduction(sch: Schedule, block: Block) -> bool:
    """Whether a block has a reduction."""
    return any(int(var.iter_type) != tirx.IterVar.DataPar for var in sch.get(block).iter_vars)


def _kinds(sch: Schedule, block: Block) -> list[str]:
    """S or R for each loop, when each binds one iterator directly; ``?`` otherwise."""
    kinds: dict[Var, str] = {}
    for var, value in zip(sch.get(block).iter_vars, _iter_values(sch, block), strict=True):
        if isinstance(value, tirx.Var):
            kinds[value] = "S" if int(var.iter_type) == tirx.IterVar.DataPar else "R"
    return [
        kinds.get(sch.get(x).loop_var, "S" if _extent(sch, x) == 1 else "?") for x in sch.get_loops(block)
    ]


def _iter_values(sch: Schedule, block: Block) -> list[Expr]:
    """Values that a block's iterators are bound to."""
    inner = sch.get(sch.get_loops(block)[-1]).body
    while not isinstance(inner, SBlockRealize):
        inner = inner.body
    return list(inner.iter_values)


def contiguous_over(sch: Schedule, block: Block, loop: Loop) -> bool:
    """Whether what the block reads is contiguous, or constant, along ``loop``."""
    stmt, values = sch.get(block), _iter_values(sch, block)
    variable = sch.get(loop).loop_var
    iterator = next((v.var for v, x in zip(stmt.iter_vars, values, strict=True) if x.same_as(variable)), None)
    if iterator is None:
        return False
    for read in stmt.reads:
        if not len(read.region):  # a single value
            continue
        *leading, last = read.region
        if any(_step(axis.min, iterator) != 0 for axis in leading) or _step(last.min, iterator) not in (0, 1):
            return False
    return True


def _step(index: Expr, iterator: Var) -> int | None:
    """Distance that a linear index moves per step of ``iterator``; None when it is not linear in it."""
    if iterator not in tirx.analysis.undefined_vars(index):
        return 0
    coefficients = tvm.sym.detect_linear_equation(index, [iterator])
    return int(coefficients[0]) if len(coefficients) and isinstance(coefficients[0], tirx.IntImm) else None
