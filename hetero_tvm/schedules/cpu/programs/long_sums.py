"""Sums and products of many terms, or of a number that is known at run time: accumulated in float64.

These are those of kernels that are not emitted but scheduled.

One accumulator takes all terms of a result, so in float32 its error would grow with their number (2 % for two
million values near 1000).  In float64 it does not show; a loop over terms of one result waits for its
additions, so it costs nothing there.
"""

from __future__ import annotations

import math
from typing import Any

from hetero_tvm.host.tvm import PrimFunc, Schedule, ScheduleError, TensorLoad, tirx, tvm_ffi

LONG = 1 << 14
"""Terms from which on a number that is known counts as large."""


def is_long(sch: Schedule, block: Any) -> bool:
    """Whether a block combines terms of float32, many or an unknown number of them for each result."""
    found = sch.get(block)
    terms = [axis.dom.extent for axis in found.iter_vars if int(axis.iter_type) == tirx.IterVar.CommReduce]
    known = [int(extent) for extent in terms if isinstance(extent, tirx.IntImm)]
    if not terms or (len(known) == len(terms) and math.prod(known) < LONG):
        return False
    store = found.body
    return (
        isinstance(store, tirx.BufferStore)
        and type(store.value) in (tirx.Add, tirx.Mul)
        and str(store.buffer.dtype) == "float32"
        and found.init is not None
    )


def accumulate_in_double(sch: Schedule, block: Any) -> None:
    """Let a long reduction that writes to a buffer of its own work in float64.

    :func:`without_rounding` must follow when the function is scheduled.
    """
    sch.unsafe_set_dtype(block, 0, "float64")


def with_own_accumulator(sch: Schedule, block: Any, loop: Any | None) -> None:
    """Let a long reduction work in float64, within ``loop``, its innermost one over results."""
    try:
        if loop is not None and not _copies_one(sch.copy(), block, loop):
            return
        rounding = sch.cache_write(block, 0, "local")
        if loop is not None:
            sch.reverse_compute_at(rounding, loop)
    except ScheduleError:
        return
    accumulate_in_double(sch, block)


def _copies_one(trial: Schedule, block: Any, loop: Any) -> bool:
    rounding = trial.cache_write(block, 0, "local")
    trial.reverse_compute_at(rounding, loop)
    return copied_in(trial, rounding, loop) == 1


def copied_in(sch: Schedule, copy: Any, loop: Any) -> int | None:
    """Elements that a block, moved into ``loop``, copies in each iteration; None where TVM cannot tell
    which they are: of fused loops whose lengths are products of sizes, it takes far too many, with
    some beyond the ends of the result and others that no iteration of this thread has computed."""
    variable = sch.get(loop).loop_var
    loops = [sch.get(one) for one in sch.get_loops(copy)]
    within = [
        one.extent for one in loops[[one.loop_var.same_as(variable) for one in loops].index(True) + 1 :]
    ]
    return math.prod(map(int, within)) if all(isinstance(n, tirx.IntImm) for n in within) else None


def without_rounding(function: PrimFunc) -> PrimFunc:
    """The function without conversions of an accumulator in float64 to float32 and back at every term."""

    def wide(store: tirx.BufferStore) -> tirx.BufferStore:
        value = store.value
        if str(store.buffer.dtype) != "float64" or not isinstance(value, tirx.Cast):
            return store
        total = value.value
        if type(total) not in (tirx.Add, tirx.Mul):
            return store
        sides = [total.a, total.b]
        own = [_is_rounded(side, store.buffer) for side in sides]
        if sum(own) != 1:
            return store
        terms = [
            side.value if mine else tirx.Cast("float64", side) for side, mine in zip(sides, own, strict=True)
        ]
        return tirx.BufferStore(store.buffer, type(total)(*terms), store.indices)

    return tvm_ffi.structural_map(function, (tirx.BufferStore, wide), order="post")


def _is_rounded(value: Any, buffer: Any) -> bool:
    return (
        isinstance(value, tirx.Cast)
        and isinstance(value.value, TensorLoad)
        and value.value.source.same_as(buffer)
    )
