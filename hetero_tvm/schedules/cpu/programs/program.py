"""Kernels of whole functions, nest by nest."""

from __future__ import annotations

import math
from typing import Any

from hetero_tvm.host.tvm import Buffer, PrimFunc
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.programs.boxes import boxes_of
from hetero_tvm.schedules.cpu.programs.linear import LinearNest, is_truth, linear_nest, tail_of
from hetero_tvm.schedules.cpu.programs.pointwise import emit_pointwise, runs_of
from hetero_tvm.schedules.cpu.programs.reduction import (
    PARALLEL_WORTH,
    Reduction,
    ReductionKernel,
    reduction_of,
)
from hetero_tvm.schedules.cpu.programs.rows import emit_rows
from hetero_tvm.schedules.cpu.programs.splits import with_split_axes
from hetero_tvm.schedules.cpu.programs.transposed import Transposed, emit_transposed, transposed_of
from hetero_tvm.schedules.emit import Kernel
from hetero_tvm.schedules.nests.nest import Nest, Nests, loads_of
from hetero_tvm.schedules.nests.program import nests_of

Step = Reduction | Transposed | tuple[LinearNest, ...]
"""Step that computes one or more nests; maps over the same runs are one step."""


def emit(function: PrimFunc, machine: CpuModel) -> PrimFunc | None:
    """The kernel of a function of reductions, transpositions and joins; None for others."""
    nests = nests_of(function)
    if nests is None or nests.empty:
        return None
    steps = _steps(nests, machine)
    if steps is None:
        return None
    k = Kernel()
    with k:
        views = _views(k, nests, {_written(step) for step in steps})
        plain = all(isinstance(step, Reduction) or _is_map(step) for step in steps)
        whole = plain and emit_rows(k, steps, views, machine)
        for step in [] if whole else steps:
            if isinstance(step, Reduction):
                ReductionKernel(k, step, views, machine).emit()
            elif isinstance(step, Transposed):
                emit_transposed(k, step, views, machine)
            else:
                emit_pointwise(k, step, views, machine)
    kernel = k.function
    if kernel.attrs and "global_symbol" in kernel.attrs:
        kernel = kernel.without_attr("global_symbol")
    return kernel.with_attr({**_attributes(function), "tirx.noalias": True})


def _attributes(function: PrimFunc) -> dict[str, Any]:
    return {name: function.attrs[name] for name in function.attrs.keys()} if function.attrs else {}


def _steps(nests: Nests, machine: CpuModel) -> list[Step] | None:
    """Steps that compute the nests; one that follows a reduction result by result becomes its tail."""
    steps: list[Step] = []
    rewritten = False
    rest = list(nests.nests)
    while rest:
        nest = rest.pop(0)
        if not nest.reduced:
            boxes = boxes_of(nest)
            split = [with_split_axes(box) for box in boxes]
            rewritten |= len(boxes) > 1 or len(split[0].axes) > len(nest.axes)
            forms = [linear_nest(box, box.value) for whole in split for box in boxes_of(whole)]
            if any(form is None for form in forms):
                return None
            across = [transposed_of(form, machine) for form in forms]
            steps.extend(found for found in across if found is not None)
            steps.extend(runs_of([f for f, found in zip(forms, across, strict=True) if found is None]))
            continue
        readers = [other for other in rest if _reads(other, nest.buffer)]
        tail = None
        if nest.buffer in nests.temporary and rest and len(readers) == 1 and readers[0] is rest[0]:
            tail = tail_of(nest, rest[0])
        reduction = reduction_of(nest, tail)
        if tail is not None and reduction is not None:
            rest.pop(0)
        reduction = reduction or reduction_of(nest)
        if reduction is None:
            return None
        steps.append(reduction)
    if not rewritten and all(_is_map(step) for step in steps) and not _is_odd(nests, machine):
        return None  # the schedule does as well for maps alone
    return steps


def _is_odd(nests: Nests, machine: CpuModel) -> bool:
    """Whether the innermost axis of a large map is no whole number of pairs of vectors."""
    last = [nest.axes[-1][1] for nest in nests.nests if nest.axes and nest.size >= PARALLEL_WORTH]
    return any(extent % (2 * machine.lanes) for extent in last)


def _is_map(step: Step) -> bool:
    return isinstance(step, tuple) and len(step) == 1


def _reads(nest: Nest, buffer: Buffer) -> bool:
    return any(load.source.same_as(buffer) for load, _ in loads_of(nest.value))


def _written(step: Step) -> Buffer:
    form = step[0] if isinstance(step, tuple) else step.form
    return form.store.buffer


def _views(k: Kernel, nests: Nests, written: set[Buffer]) -> dict[Buffer, Buffer]:
    """Arguments and temporary buffers, each as one axis."""
    params = nests.function.params
    arguments = [k.argument(b.name, [int(e) for e in b.shape], str(b.dtype)) for b in params]
    views = {
        b: k.bytes_of(a, (_size(b),)) if is_truth(b) else k.view(a, (_size(b),))
        for b, a in zip(params, arguments, strict=True)
    }
    kinds = {b: "uint8" if is_truth(b) else str(b.dtype) for b in nests.temporary if b in written}
    return views | {b: k.scratch((_size(b),), kind) for b, kind in kinds.items()}


def _size(buffer: Buffer) -> int:
    return math.prod(int(extent) for extent in buffer.shape)
