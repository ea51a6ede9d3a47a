"""Kernels of whole functions, nest by nest."""

from __future__ import annotations

import math
from typing import Any

from hetero_tvm.host.tvm import Buffer, PrimFunc
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.programs.linear import LinearNest, linear_nest, tail_of
from hetero_tvm.schedules.cpu.programs.pointwise import emit_pointwise
from hetero_tvm.schedules.cpu.programs.reduction import Reduction, ReductionKernel, reduction_of
from hetero_tvm.schedules.cpu.programs.transposed import emit_transposed, transposed_of
from hetero_tvm.schedules.emit import Kernel
from hetero_tvm.schedules.nests.nest import Nest, Nests, loads_of
from hetero_tvm.schedules.nests.program import nests_of


def emit(function: PrimFunc, machine: CpuModel) -> PrimFunc | None:
    """The kernel of a function that is made of reductions and maps of linear accesses; None for others."""
    nests = nests_of(function)
    if nests is None or nests.empty:
        return None
    forms = _forms(nests)
    if any(form is None for form in forms):
        return None
    across = [None if isinstance(form, Reduction) else transposed_of(form, machine) for form in forms]
    if not any(isinstance(form, Reduction) for form in forms) and not any(across):
        return None  # the schedule does as well
    k = Kernel()
    with k:
        views = _views(k, nests, {_written(form) for form in forms})
        for form, found in zip(forms, across, strict=True):
            if isinstance(form, Reduction):
                ReductionKernel(k, form, views, machine).emit()
            elif found is not None:
                emit_transposed(k, found, views, machine)
            else:
                emit_pointwise(k, form, views, machine)
    kernel = k.function
    if kernel.attrs and "global_symbol" in kernel.attrs:
        kernel = kernel.without_attr("global_symbol")
    return kernel.with_attr({**_attributes(function), "tirx.noalias": True})


def _attributes(function: PrimFunc) -> dict[str, Any]:
    return {name: function.attrs[name] for name in function.attrs.keys()} if function.attrs else {}


def _forms(nests: Nests) -> list[Reduction | LinearNest | None]:
    """How each nest is computed; one that follows a reduction result by result becomes its tail."""
    forms: list[Reduction | LinearNest | None] = []
    rest = list(nests.nests)
    while rest:
        nest = rest.pop(0)
        if not nest.reduced:
            forms.append(linear_nest(nest, nest.value))
            continue
        readers = [other for other in rest if _reads(other, nest.buffer)]
        tail = None
        if nest.buffer in nests.temporary and rest and len(readers) == 1 and readers[0] is rest[0]:
            tail = tail_of(nest, rest[0])
        joined = reduction_of(nest, tail)
        if tail is not None and joined is not None:
            rest.pop(0)
        forms.append(joined or reduction_of(nest))
    return forms


def _reads(nest: Nest, buffer: Buffer) -> bool:
    return any(load.source.same_as(buffer) for load, _ in loads_of(nest.value))


def _written(form: Reduction | LinearNest) -> Buffer:
    return (form.form if isinstance(form, Reduction) else form).store.buffer


def _views(k: Kernel, nests: Nests, written: set[Buffer]) -> dict[Buffer, Buffer]:
    """Arguments and temporary buffers, each as one axis."""
    params = nests.function.params
    arguments = [k.argument(b.name, [int(e) for e in b.shape], str(b.dtype)) for b in params]
    views = {b: k.view(a, (_size(b),)) for b, a in zip(params, arguments, strict=True)}
    return views | {b: k.scratch((_size(b),), str(b.dtype)) for b in nests.temporary if b in written}


def _size(buffer: Buffer) -> int:
    return math.prod(int(extent) for extent in buffer.shape)
