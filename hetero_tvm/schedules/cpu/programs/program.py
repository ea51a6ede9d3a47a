"""Kernels of whole functions, nest by nest."""

from __future__ import annotations

import math
from typing import Any

from hetero_tvm.host.tvm import Buffer, PrimFunc
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.programs.linear import LinearNest, linear_nest
from hetero_tvm.schedules.cpu.programs.pointwise import emit_pointwise
from hetero_tvm.schedules.cpu.programs.reduction import Reduction, ReductionKernel, reduction_of
from hetero_tvm.schedules.emit import Kernel
from hetero_tvm.schedules.nests.nest import Nest, Nests
from hetero_tvm.schedules.nests.program import nests_of


def emit(function: PrimFunc, machine: CpuModel) -> PrimFunc | None:
    """The kernel of a function with reductions; None where a nest is no reduction or map of linear accesses."""
    nests = nests_of(function)
    if nests is None or nests.empty:
        return None
    forms = [_form(nest) for nest in nests.nests]
    if any(form is None for form in forms) or not any(isinstance(form, Reduction) for form in forms):
        return None
    k = Kernel()
    with k:
        views = _views(k, nests)
        for form in forms:
            if isinstance(form, Reduction):
                ReductionKernel(k, form, views, machine).emit()
            else:
                emit_pointwise(k, form, views, machine)
    kernel = k.function
    if kernel.attrs and "global_symbol" in kernel.attrs:
        kernel = kernel.without_attr("global_symbol")
    return kernel.with_attr({**_attributes(function), "tirx.noalias": True})


def _attributes(function: PrimFunc) -> dict[str, Any]:
    return {name: function.attrs[name] for name in function.attrs.keys()} if function.attrs else {}


def _form(nest: Nest) -> Reduction | LinearNest | None:
    return reduction_of(nest) if nest.reduced else linear_nest(nest, nest.value)


def _views(k: Kernel, nests: Nests) -> dict[Buffer, Buffer]:
    """Arguments and temporary buffers, each as one axis."""
    params = nests.function.params
    arguments = [k.argument(b.name, [int(e) for e in b.shape], str(b.dtype)) for b in params]
    views = {b: k.view(a, (_size(b),)) for b, a in zip(params, arguments, strict=True)}
    return views | {b: k.scratch((_size(b),), str(b.dtype)) for b in nests.temporary}


def _size(buffer: Buffer) -> int:
    return math.prod(int(extent) for extent in buffer.shape)
