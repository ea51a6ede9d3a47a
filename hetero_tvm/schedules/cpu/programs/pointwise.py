"""Nests without a reduction: one value per element of the result.

Loop structure::

    parallel runs of the innermost axis, or pieces of it:
        what does not change along it
        pairs of vectors of the machine's width; the last ones are narrower

The innermost axis is the one along which the result is contiguous.  What does not change along it (a row's
logarithm, a division) is computed once per run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hetero_tvm.host.tvm import Expr, TensorLoad, Var, tirx, tvm, tvm_ffi
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.programs.linear import LinearNest, Views, bits_of, split_index, stored
from hetero_tvm.schedules.cpu.programs.reduction import PARALLEL_WORTH, vector
from hetero_tvm.schedules.emit import Index, Kernel, vector_loop

_VALUES = (TensorLoad, tvm.ir.Call, tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min, tirx.Cast)
"""Expressions that may be computed ahead."""

_MOST_INTERLEAVED = 4
"""Most maps whose elements alternate."""

_PIECE = 16
"""Vectors of the shortest piece of a run."""


def runs_of(forms: Sequence[LinearNest]) -> list[tuple[LinearNest, ...]]:
    """Maps that write pieces of the same runs, together."""
    groups: dict[Any, list[LinearNest]] = {}
    for form in forms:
        outer = (form.kept[:-1], form.store.steps[:-1], form.store.buffer)
        # What is whole in one piece stays alone: nothing else writes to its runs.
        groups.setdefault(outer if len(form.kept) > 1 else id(form), []).append(form)
    return [tuple(group) for group in groups.values()]


def emit_pointwise(k: Kernel, forms: Sequence[LinearNest], views: Views, machine: CpuModel) -> None:
    """The loops of maps over the same runs, in a kernel that is being built."""
    form = forms[0]
    if not form.kept:
        k.store(views[form.store.buffer], stored(form.value(k, views, [])), [form.store.place([])])
        return
    if len(forms) == 1 and _is_interleaved(form):
        _emit_interleaved(k, form, views)
        return
    *outer, _ = form.kept
    rows, work = math.prod(outer), sum(math.prod(f.kept) for f in forms)
    pieces = 1
    if work >= PARALLEL_WORTH and rows < 2 * machine.threads:
        longest = max(f.kept[-1] for f in forms)
        pieces = max(1, min(-(-2 * machine.threads // rows), longest // (_PIECE * _lanes(form, machine))))

    worth = work >= PARALLEL_WORTH
    with k.parallel(rows * pieces) if worth else k.serial(rows * pieces) as index:
        for form in forms:
            emit_run(k, form, views, machine, index, pieces)


def _is_interleaved(form: LinearNest) -> bool:
    """Whether the result is made of few interleaved maps, each contiguous in itself."""
    if len(form.kept) < 2 or not 1 < form.kept[-1] <= _MOST_INTERLEAVED:
        return False
    return form.store.steps[-2:] == (form.kept[-1], 1) and form.kept[-2] >= 2 * _MOST_INTERLEAVED


def _emit_interleaved(k: Kernel, form: LinearNest, views: Views) -> None:
    """``parallel rows . run . unrolled maps``: LLVM makes vectors of the run and shuffles them together."""
    *outer, length, count = form.kept
    rows = math.prod(outer)
    worth = math.prod(form.kept) >= PARALLEL_WORTH
    with k.parallel(rows) if worth else k.serial(rows) as index:
        where = split_index(index, outer)
        with k.serial(length) as at, k.unroll(count) as number:
            positions = [*where, at, number]
            value = form.value(k, views, positions)
            k.store(views[form.store.buffer], stored(value), [form.store.place(positions)])


def emit_run(
    k: Kernel, form: LinearNest, views: Views, machine: CpuModel, index: Expr, pieces: int = 1
) -> None:
    """One run of a map, or piece of it: number ``index``."""
    *outer, length = form.kept
    lanes = _lanes(form, machine)
    size = length // pieces // lanes * lanes if pieces > 1 else length
    where = split_index(tirx.floordiv(index, pieces) if pieces > 1 else index, outer)
    first: Index = tirx.floormod(index, pieces) * size if pieces > 1 else 0
    inner = tirx.Var("inner", "int32")
    value = _hoisted(k, stored(form.value(k, views, [*where, inner])), inner)
    place = form.store.place([*where, inner])

    def at(start: Index, width: int) -> None:
        with vector(width) as v:
            here = {inner: v + start}
            k.store(views[form.store.buffer], _put(value, here), [_put(place, here)])

    # Two registers in one expression: LLVM takes them in turn, and neither waits for the other.
    vector_loop(k, size, 2 * lanes, lambda s, w: at(first + s, w))
    done = pieces * size
    if done < length:
        with k.when(tirx.EQ(tirx.floormod(index, pieces), pieces - 1)):
            vector_loop(k, length - done, lanes, lambda s, w: at(s + done, w))


def _lanes(form: LinearNest, machine: CpuModel) -> int:
    return max(1, machine.lanes * 32 // max(bits_of(form.store.buffer), 16))


def _put(expression: Expr, values: dict[Var, Expr]) -> Expr:
    return tvm_ffi.structural_map(expression, (tvm.ir.Var, lambda v: values.get(v, v)))


def _hoisted(k: Kernel, value: Expr, inner: Var) -> Expr:
    """``value`` with what does not depend on ``inner`` computed before, where a load is among it."""

    def bind(node: Any) -> Any:
        if inner in tirx.analysis.undefined_vars(node) or not _reads(node):
            return node
        return k.let(node)

    return tvm_ffi.structural_map(value, (_VALUES, bind), order="pre")


def _reads(node: Any) -> bool:
    found: list[Any] = []

    def note(load: TensorLoad) -> TensorLoad:
        found.append(load)
        return load

    tvm_ffi.structural_map(node, (TensorLoad, note), order="pre")
    return bool(found)
