"""The nests of a generic kernel: producers are inlined where they can be, each block then is a nest."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

from hetero_tvm.host.tvm import (
    Buffer,
    Expr,
    IRModule,
    PrimFunc,
    SBlockRealize,
    Schedule,
    ScheduleError,
    TensorLoad,
    tirx,
    tvm_ffi,
)
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.nests.arg_nest import arg_nest
from hetero_tvm.schedules.nests.growth import written_once
from hetero_tvm.schedules.nests.nest import Nest, Nests, loads_of

_MOST_ELEMENTS = 2**31 - 1


@functools.lru_cache(maxsize=64)
def program_nests(op: FusedOp) -> Nests | str:
    """The nests of an operator's unscheduled TensorIR, or the reason why there are none."""
    nests = nests_of(op.workload())
    if nests is None:
        return "its loops are more than nests over one expression each"
    return "an extent is zero" if nests.empty else nests


@functools.lru_cache(maxsize=4)
def nests_of(function: PrimFunc) -> Nests | None:
    """The nests of a function of blocks; None where it is not made of plain ones of static shape.

    Those of the last functions are kept: one scheduler after the other asks whether it knows them.
    """
    if not all(_is_static(parameter) for parameter in function.params):
        return None
    schedule = Schedule(IRModule({"main": function.with_attr("global_symbol", "main")}))
    try:
        root = schedule.get_sblock("root")
    except (ValueError, RuntimeError):
        return None
    _inline(schedule, root)
    blocks = schedule.get_child_blocks(root)
    nests = [_nest(schedule, block) for block in blocks]
    if not nests or any(nest is None for nest in nests):
        return None
    inlined = schedule.mod["main"]
    temporary = tuple(schedule.get(root).alloc_buffers)
    if any(math.prod(map(int, buffer.shape)) > _MOST_ELEMENTS for buffer in temporary):
        return None
    return Nests(inlined, tuple(nests), temporary)


def without_empty(nests: Nests) -> Nests:
    """``nests`` without reductions over nothing, which give their first value."""
    firsts: dict[Buffer, Expr] = {}
    kept = []
    for nest in nests.nests:
        if nest.reduced and nest.length == 0:
            nest = dataclasses.replace(nest, reduced=(), value=nest.init, init=None)
        if nest.buffer in nests.temporary and not nest.reduced and not loads_of(nest.value):
            firsts[nest.buffer] = nest.value
            continue

        def first(load: TensorLoad) -> Expr:
            return firsts.get(load.source, load)

        value = tvm_ffi.structural_map(nest.value, (TensorLoad, first), order="pre")
        kept.append(dataclasses.replace(nest, value=value))
    written = {nest.buffer for nest in kept}
    temporary = tuple(buffer for buffer in nests.temporary if buffer in written)
    if not any(math.prod(map(int, buffer.shape)) for buffer in nests.results):
        kept, temporary = [dataclasses.replace(n, reduced=()) for n in kept if n.size == 0], ()
    return Nests(nests.function, tuple(kept), temporary)


def _is_static(parameter: Any) -> bool:
    """Whether a parameter is a buffer of known shape whose elements 32-bit offsets reach."""
    shape = getattr(parameter, "shape", None)
    if shape is None or not all(isinstance(extent, int | tirx.IntImm) for extent in shape):
        return False
    return math.prod(int(extent) for extent in shape) <= _MOST_ELEMENTS


def _inline(schedule: Schedule, root: Any) -> None:
    """Inline every producer and consumer that can be, where the result does not grow beyond all bounds."""
    kept = written_once(schedule, root)
    temporary = set(schedule.get(root).alloc_buffers)
    for way in (schedule.compute_inline, schedule.reverse_compute_inline):
        for block in list(schedule.get_child_blocks(root)):
            found = schedule.get(block)
            if any(variable.iter_type != tirx.IterVar.DataPar for variable in found.iter_vars):
                continue
            regions = found.writes if way == schedule.compute_inline else found.reads
            if any(region.source in kept for region in regions):
                continue
            if temporary.isdisjoint(region.source for region in regions):
                continue  # between ends of the function: each refusal of TVM's would look at all blocks
            try:
                way(block)
            except ScheduleError:
                pass  # an output, or used in a way that cannot be inlined


def _nest(schedule: Schedule, reference: Any) -> Nest | None:
    """The nest of a block; None where it is no plain one."""
    block = schedule.get(reference)
    if len(block.match_buffers):
        return None
    axes, reduced = [], []
    for variable in block.iter_vars:
        kind, dom = variable.iter_type, variable.dom
        if not isinstance(dom.extent, tirx.IntImm) or not isinstance(dom.min, tirx.IntImm) or int(dom.min):
            return None
        if kind not in (tirx.IterVar.DataPar, tirx.IterVar.CommReduce):
            return None
        (axes if kind == tirx.IterVar.DataPar else reduced).append((variable.var, int(dom.extent)))
    if not _covers(schedule, reference, math.prod(extent for _, extent in (*axes, *reduced))):
        return None
    if not isinstance(block.body, tirx.BufferStore):
        return arg_nest(block, tuple(axes), tuple(reduced))
    store, init = block.body, None
    if reduced:
        if not isinstance(block.init, tirx.BufferStore):
            return None
        init = block.init.value
    return Nest(tuple(axes), tuple(reduced), store.buffer, tuple(store.indices), store.value, init)


def _covers(schedule: Schedule, reference: Any, size: int) -> bool:
    """Whether the loops around a block run through its axes one by one, and nothing else."""
    loops = schedule.get_loops(reference)
    inner = schedule.get(loops[-1]).body if loops else None
    if inner is not None and not isinstance(inner, SBlockRealize):
        return False
    if inner is not None and not (isinstance(inner.predicate, tirx.IntImm) and int(inner.predicate)):
        return False
    variables = [schedule.get(loop).loop_var for loop in loops]
    if inner is not None:
        for value in inner.iter_values:
            known = any(isinstance(value, tirx.Var) and value.same_as(variable) for variable in variables)
            if not known and not isinstance(value, tirx.IntImm):
                return False
    extents = [schedule.get(loop).extent for loop in loops]
    return all(isinstance(e, tirx.IntImm) for e in extents) and math.prod(map(int, extents)) == size
