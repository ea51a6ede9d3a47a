"""Kernels of the CPU that are written for extents known at run time, and schedules for any other."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

from hetero_tvm.host.tvm import PrimFunc, Schedule, ScheduleError, tirx, tvm
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.volumes.slice_windows import SliceWindows
from hetero_tvm.schedules.base import DesignSpace, Point
from hetero_tvm.schedules.cpu.generic import contiguous_over, reduce_in_registers, width_of
from hetero_tvm.schedules.cpu.images.conv2d import Conv2dSpace
from hetero_tvm.schedules.cpu.products import few_rows
from hetero_tvm.schedules.cpu.products.matmul_kernel import MatmulDecisions
from hetero_tvm.schedules.cpu.programs.long_sums import (
    copied_in,
    is_long,
    with_own_accumulator,
    without_rounding,
)
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.cpu.symbolic.attention import RunTimeAttentionKernel
from hetero_tvm.schedules.cpu.symbolic.batch_matmul import RunTimeBatchMatmulKernel
from hetero_tvm.schedules.cpu.symbolic.blocked_attention import BlockedRunTimeAttentionKernel
from hetero_tvm.schedules.cpu.symbolic.conv2d import RunTimeConvKernel
from hetero_tvm.schedules.cpu.symbolic.copies import SliceWindowsSpace, interleaved
from hetero_tvm.schedules.cpu.symbolic.forest import run_time_forest
from hetero_tvm.schedules.cpu.symbolic.images import (
    change_of_layout,
    channel_norm,
    conv2d_blocked,
    depthwise,
    group_norm,
    pool2d,
)
from hetero_tvm.schedules.cpu.symbolic.inner import RunTimeInnerKernel
from hetero_tvm.schedules.cpu.symbolic.innermost import in_vectors
from hetero_tvm.schedules.cpu.symbolic.matmul import RunTimeGatedMatmulKernel, RunTimeMatmulKernel
from hetero_tvm.schedules.cpu.symbolic.norms import (
    run_time_group_norm,
    run_time_norm_of_axis,
    run_time_norm_of_rows,
)
from hetero_tvm.schedules.cpu.symbolic.pairs import pairs_kernel
from hetero_tvm.schedules.cpu.symbolic.pool2d import RunTimePoolKernel
from hetero_tvm.schedules.cpu.symbolic.recurrence import RunTimeRecurrenceKernel
from hetero_tvm.schedules.cpu.symbolic.reductions import reduction_kernel
from hetero_tvm.schedules.cpu.symbolic.softmax import run_time_softmax
from hetero_tvm.schedules.cpu.symbolic.transposed import transposed_kernel
from hetero_tvm.schedules.extents import Unfit
from hetero_tvm.schedules.nests.growth import written_once
from hetero_tvm.schedules.symbolic import Witnesses

_PIECES = {
    "cpu.conv2d": ("blocks", "groups"),
    "cpu.conv2d_blocked": ("blocks", "groups"),
    "cpu.bf16_conv2d": ("blocks", "groups"),
    "cpu.depthwise": ("blocks",),
    "cpu.quant_conv2d": ("grid",),
}
_SHORT_ROW = 2048
"""Elements of a row up to which one thread takes it whole, however few rows a call has: what only rows decide
is computed once for each."""
_PARALLEL_WORTH = 8192
"""Loop iterations at the largest sizes from which on the other threads are woken."""


def kept_decisions(space: DesignSpace, point: Point) -> Point:
    """The point without what is decided at the call: weights are packed as it says."""
    if space.name in ("cpu.matmul", "cpu.gated_matmul"):
        return {**point, "row_blocks": 1, "k_blocks": 1, "prefetch": 1}
    if space.name == "cpu.stored_matmul":
        return {**point, "together": None}  # as the machine likes it for one row, which is among them
    return point


def space_for(op: FusedOp) -> DesignSpace | None:
    """The space of a kernel for run time alone: for convolutions whose filters have more taps than their own
    space takes, and for windows of slices; at one size both are plain loops."""
    if type(op) is SliceWindows:
        return SliceWindowsSpace()
    served = type(op) is Conv2d and op.plain and op.constant_weight and op.dtype == "float32"
    return Conv2dSpace() if served else None


def pieces(space: DesignSpace) -> tuple[str, ...]:
    """Knobs that cut images into pieces for threads; other kernels decide that at the call, or by rows."""
    return _PIECES.get(space.name, ())


def emit(witnesses: Witnesses, space: DesignSpace, point: Point, machine: CpuModel) -> PrimFunc | None:
    """The kernel for all sizes; None where the space has none that is written for it."""
    if witnesses.told and space.name not in _TOLD:
        return None
    written = _WRITTEN.get(space.name, space.run_time_kernel)
    return written(witnesses, point, machine)


def _attention(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc:
    tile, lanes = RegisterTile.of(point["tile"]), machine.lanes
    pieces, unroll = point["pieces"], point["unroll"]
    if not (block := point.get("block", 0)):
        return RunTimeAttentionKernel(witnesses, tile, pieces, unroll, lanes).emit()
    block -= block % tile.columns(lanes)
    return BlockedRunTimeAttentionKernel(witnesses, tile, pieces, block, unroll, lanes).emit()


def _batch_matmul(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc:
    tile = RegisterTile.of(point["tile"])
    if point.get("order") == few_rows.INNER:
        with contextlib.suppress(Unfit):
            return RunTimeInnerKernel(witnesses, machine).emit()
    return RunTimeBatchMatmulKernel(witnesses, tile, point["unroll"], machine).emit()


def _conv2d(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc:
    return RunTimeConvKernel(witnesses, RegisterTile.of(point["tile"]), machine).emit()


def _forest(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc:
    return run_time_forest(witnesses, point["walks"], machine.threads)


def _group_norm(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc:
    return run_time_group_norm(witnesses, point["chunks"], machine)


def _interleave(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc | None:
    return interleaved(witnesses, point["pixels"])


def _matmul(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc:
    return RunTimeMatmulKernel(witnesses, MatmulDecisions.of(point), machine).emit()


def _gated_matmul(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc:
    return RunTimeGatedMatmulKernel(witnesses, MatmulDecisions.of(point), machine).emit()


def _norm_of_axis(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc:
    return run_time_norm_of_axis(witnesses, machine)


def _norm_of_rows(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc | None:
    return run_time_norm_of_rows(witnesses, machine)


def _recurrence(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc:
    return RunTimeRecurrenceKernel(witnesses, point, machine).emit()


def _softmax(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc:
    return run_time_softmax(witnesses, point["chunks"], machine.lanes)


def _pool2d(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc:
    return RunTimePoolKernel(witnesses, point["rows"], machine.lanes).emit()


_WRITTEN: dict[str, Callable[[Witnesses, Point, CpuModel], PrimFunc | None]] = {
    "cpu.attention": _attention,
    "cpu.batch_matmul": _batch_matmul,
    "cpu.blocked_group_norm": group_norm,
    "cpu.blocked_normalize": channel_norm,
    "cpu.conv2d": _conv2d,
    "cpu.conv2d_blocked": conv2d_blocked,
    "cpu.depthwise": depthwise,
    "cpu.forest": _forest,
    "cpu.gated_matmul": _gated_matmul,
    "cpu.group_norm": _group_norm,
    "cpu.interleave": _interleave,
    "cpu.matmul": _matmul,
    "cpu.normalize": _norm_of_rows,
    "cpu.normalize_axis": _norm_of_axis,
    "cpu.pool2d": pool2d,
    "cpu.pool2d_plain": _pool2d,
    "cpu.recurrence": _recurrence,
    "cpu.relayout": change_of_layout,
    "cpu.softmax": _softmax,
    "cpu.softmax_axis": _softmax,
}
"""Space -> its kernel for all sizes; other spaces have one themselves, or none."""
_TOLD = frozenset(
    {
        *("cpu.attention", "cpu.batch_matmul", "cpu.bf16_attention", "cpu.conv2d"),
        *("cpu.conv2d_blocked", "cpu.depthwise", "cpu.interleave", "cpu.pool2d"),
        *("cpu.normalize", "cpu.quant_conv2d", "cpu.relayout", "cpu.slice_windows"),
        *("cpu.blocked_group_norm", "cpu.blocked_normalize"),
    }
)
"""Spaces whose kernels take operands that only tell sizes; those of the others tell all sizes themselves."""


def schedule(function: PrimFunc, work: int, machine: CpuModel) -> PrimFunc:
    """Schedule any PrimFunc of blocks: producers inlined, rows in parallel, whole vectors innermost.

    Parameters
    ----------
    work : iterations of all loops at the largest sizes.
    """
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    try:
        sch = Schedule(module)
        root = sch.get_sblock("root")
    except (ValueError, RuntimeError):  # hand-written loops: no blocks to schedule
        return function
    kept = written_once(sch, root)
    for block in list(sch.get_child_blocks(root)):
        if any(region.source in kept for region in sch.get(block).writes):
            continue
        try:
            sch.compute_inline(block)
        except ScheduleError:
            pass  # an output, a reduction, or used in a way that cannot be inlined
    if (reduction := reduction_kernel(sch.mod["main"], sch, machine)) is not None:
        return reduction
    if (pairs := pairs_kernel(sch.mod["main"], sch, machine, work)) is not None:
        return pairs
    if (transposed := transposed_kernel(sch.mod["main"], sch, machine)) is not None:
        return transposed
    for block in sch.get_child_blocks(root):
        terms = _loop_of_terms(sch, block)
        try:
            if _schedule_block(sch, block, work, machine):
                continue
        except ScheduleError:
            pass  # the block keeps the steps that succeeded before
        if terms is not None:  # it would begin at its first term, and of an empty axis there is none
            sch.decompose_reduction(block, terms)
    scheduled = in_vectors(without_rounding(sch.mod["main"]), machine)
    return scheduled.without_attr("global_symbol").with_attr("tirx.noalias", True)


def _loop_of_terms(sch: Schedule, block):
    """Outermost loop of a reduction over terms that are counted at run time; None where there is none."""
    loops, found = sch.get_loops(block), sch.get(block)
    if found.init is None or len(loops) != len(found.iter_vars):
        return None
    kinds = [int(axis.iter_type) == tirx.IterVar.CommReduce for axis in found.iter_vars]
    terms = [loop for loop, reduced in zip(loops, kinds, strict=True) if reduced]
    known = all(isinstance(sch.get(loop).extent, tirx.IntImm) for loop in terms)
    return None if known else terms[0]


def _schedule_block(sch: Schedule, block, work: int, machine: CpuModel) -> bool:
    """Schedule one block; whether its first terms are apart from the others by now."""
    loops = sch.get_loops(block)
    iterators = sch.get(block).iter_vars
    if not loops or len(iterators) != len(loops):
        return False
    spatial = [
        loop for loop, i in zip(loops, iterators, strict=True) if int(i.iter_type) == tirx.IterVar.DataPar
    ]
    if loops[: len(spatial)] != spatial:
        return False
    outer = spatial
    if len(spatial) < len(loops) and _in_strips(sch, block, spatial, loops[len(spatial) :], work, machine):
        return True
    if len(spatial) == len(loops):
        extent = sch.get(loops[-1]).extent
        if isinstance(extent, tirx.IntImm) and len(spatial) > 1:
            width = max(d for d in range(1, 2 * machine.lanes + 1) if int(extent) % d == 0)
            outer = spatial[:-1]
            if width >= 4:
                more, lanes = sch.split(loops[-1], [None, width])
                sch.vectorize(lanes)
                if int(extent) > _SHORT_ROW:
                    outer = [*outer, more]
        else:
            outer = spatial[:-1]
    rows = [sch.get(loop).extent for loop in outer]
    few = all(isinstance(n, tirx.IntImm) for n in rows) and math.prod(map(int, rows)) < machine.threads
    if outer and work >= _PARALLEL_WORTH and not (few and len(spatial) == len(loops)):
        outer = _fused(sch, outer)
        sch.parallel(outer[0])
    if is_long(sch, block):
        with_own_accumulator(sch, block, outer[-1] if outer else None)
    return False


def _in_strips(sch: Schedule, block, spatial: list, reduced: list, work: int, machine: CpuModel) -> bool:
    """Whether a reduction is scheduled now as ``parallel(outer) . reduce . vector``: the last axis of its
    results has a known extent, and what is read lies one after another along it."""
    extent = sch.get(spatial[-1]).extent if spatial else None
    if not isinstance(extent, tirx.IntImm) or not contiguous_over(sch, block, spatial[-1]):
        return False
    width = width_of(int(extent), machine)
    if width == 1:
        return False
    for fused in range(len(spatial), 0, -1):
        try:
            if _cut_strips(sch.copy(), block, spatial, reduced, width, fused, work):
                _cut_strips(sch, block, spatial, reduced, width, fused, work)
                return True
        except (ScheduleError, ValueError, RuntimeError):
            continue
    return False


def _cut_strips(
    sch: Schedule, block, spatial: list, reduced: list, width: int, fused: int, work: int
) -> bool:
    """Schedule a reduction in strips, with so many outer loops as one; whether each writes just its own."""
    *outer, last = spatial
    more, lanes = sch.split(last, [None, width])
    outer = [*outer, more]
    sch.reorder(*outer, *reduced, lanes)
    outer = [sch.fuse(*outer[:fused]), *outer[fused:]] if fused > 1 else outer
    if work >= _PARALLEL_WORTH:
        sch.parallel(outer[0])
    results = reduce_in_registers(sch, block, outer[-1], reduced[0], lanes)
    return copied_in(sch, results, outer[-1]) == width


def _fused(sch: Schedule, loops: list) -> list:
    """The loops with as many of the outermost as one as TVM can prove to be the same: it cannot divide
    `b * (h + 4) * 18` by `(h + 4) * 18`, and an attempt that fails would leave the schedule in pieces."""
    for number in range(len(loops), 1, -1):
        trial = sch.copy()
        try:
            trial.fuse(*loops[:number])
        except (ValueError, RuntimeError):
            continue
        return [sch.fuse(*loops[:number]), *loops[number:]]
    return loops
