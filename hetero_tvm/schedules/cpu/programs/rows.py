"""Chains of reductions of rows and maps over them, row by row: softmax, its logarithm, norms written out.

Loop structure::

    parallel rows:
        for each step of the chain: its loop over the row

A row stays in L1 or L2 from one step to the next, and the threads are woken once.  This holds where each step
reads of the others' results nothing but those of its own row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.programs.linear import Access, LinearNest, Views
from hetero_tvm.schedules.cpu.programs.pointwise import emit_run
from hetero_tvm.schedules.cpu.programs.reduction import PARALLEL_WORTH, Reduction, ReductionKernel
from hetero_tvm.schedules.emit import Kernel

RowStep = Reduction | tuple[LinearNest, ...]


def emit_rows(k: Kernel, steps: Sequence[RowStep], views: Views, machine: CpuModel) -> bool:
    """The loops of a chain, in a kernel that is being built; False, and nothing, where there is none."""
    forms = [step.form if isinstance(step, Reduction) else step[0] for step in steps]
    rows = forms[0].kept[0] if forms[0].kept else 0
    if len(steps) < 2 or rows < 2 * machine.threads or not all(_by_rows(form, rows) for form in forms):
        return False
    kernels = [ReductionKernel(k, s, views, machine) if isinstance(s, Reduction) else None for s in steps]
    if not all(kernel is None or kernel.of_rows for kernel in kernels) or not _local(forms):
        return False
    work = sum(math.prod((*form.kept, *form.reduced)) for form in forms)
    with k.parallel(rows) if work >= PARALLEL_WORTH else k.serial(rows) as row:
        for kernel, form in zip(kernels, forms, strict=True):
            if kernel is not None:
                kernel.emit_tile(row)
            else:
                emit_run(k, form, views, machine, row)
    return True


def _by_rows(form: LinearNest, rows: int) -> bool:
    """Whether the first axis is the rows, and a reduction keeps no other, a map one other."""
    return form.kept[:1] == (rows,) and len(form.kept) == (1 if form.reduced else 2)


def _local(forms: Sequence[LinearNest]) -> bool:
    """Whether the steps meet in rows alone."""
    written: dict[object, list[Access]] = {}
    for form in forms:
        written.setdefault(form.store.buffer, []).append(form.store)
    for form in forms:
        sizes = (*form.kept, *form.reduced)
        for access in [form.store, *(a for _, a in form.loads)]:
            if access.buffer not in written:
                continue
            within = zip(sizes[1:], access.steps[1:], strict=True)
            reach = access.base + sum((extent - 1) * step for extent, step in within)
            row = written[access.buffer][0].steps[0]
            falling = access.base < 0 or any(step < 0 for step in access.steps)
            if falling or access.steps[0] != row or reach >= row:
                return False
    return True
