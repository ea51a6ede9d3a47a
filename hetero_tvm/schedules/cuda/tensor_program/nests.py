"""A generic kernel as nests of loops over one expression each, which the spaces of plain kernels rewrite.

The producers that can be are inlined first.  A nest's axes are then taken as one flat index, and every
load as an element of flat memory, so that contiguity, alignment and uniformity of neighbouring elements
can be proved whatever the shapes are.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hetero_tvm.host.tvm import TensorLoad, s_tir, tirx, tvm, tvm_ffi
from hetero_tvm.ops.base import FusedOp

_MOST_ELEMENTS = 2**31 - 1


@dataclass(frozen=True)
class Nest:
    """``buffer[indices] = value`` over ``axes``, or combined over ``reduced`` from ``init`` on.

    Axes are pairs of variable and extent.
    """

    axes: tuple[tuple[Any, int], ...]
    reduced: tuple[tuple[Any, int], ...]
    buffer: Any
    indices: tuple[Any, ...]
    value: Any
    init: Any = None

    @property
    def size(self) -> int:
        return math.prod(extent for _, extent in self.axes)

    @property
    def length(self) -> int:
        """Terms of one reduction."""
        return math.prod(extent for _, extent in self.reduced)

    @property
    def index_dtype(self) -> str:
        return str((self.axes or self.reduced)[0][0].ty.dtype) if self.axes or self.reduced else "int32"


@dataclass(frozen=True)
class Nests:
    """A function as nests in order; buffers that are neither inputs nor outputs are ``temporary``."""

    function: Any
    nests: tuple[Nest, ...]
    temporary: tuple[Any, ...]

    @property
    def empty(self) -> bool:
        return any(nest.size * nest.length == 0 for nest in self.nests)

    @property
    def results(self) -> tuple[Any, ...]:
        """The parameters that are written."""
        written = {nest.buffer for nest in self.nests}
        return tuple(buffer for buffer in self.function.params if buffer in written)


@functools.lru_cache(maxsize=64)
def program_nests(op: FusedOp) -> Nests | str:
    """The nests of an operator's unscheduled TensorIR, or why there are none."""
    nests = nests_of(op.workload())
    if nests is None:
        return "its loops are more than nests over one expression each"
    return "an extent is zero" if nests.empty else nests


def nests_of(function: Any) -> Nests | None:
    """The nests of a function of blocks; None where it is not made of plain ones of static shape."""
    if not all(_is_static(parameter) for parameter in function.params):
        return None
    plan = s_tir.Schedule(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}))
    try:
        root = plan.get_sblock("root")
    except (ValueError, RuntimeError):
        return None
    _inline(plan, root)
    blocks = plan.get_child_blocks(root)
    nests = [_nest(plan, block) for block in blocks]
    if not nests or any(nest is None for nest in nests):
        return None
    inlined = plan.mod["main"]
    temporary = tuple(plan.get(root).alloc_buffers)
    if any(math.prod(map(int, buffer.shape)) > _MOST_ELEMENTS for buffer in temporary):
        return None
    return Nests(inlined, tuple(nests), temporary)


def without_empty(nests: Nests) -> Nests:
    """The same function without reductions over nothing, which give their first value."""
    firsts: dict[Any, Any] = {}
    kept = []
    for nest in nests.nests:
        if nest.reduced and nest.length == 0:
            nest = dataclasses.replace(nest, reduced=(), value=nest.init, init=None)
        if nest.buffer in nests.temporary and not nest.reduced and not loads_of(nest.value):
            firsts[nest.buffer] = nest.value
            continue

        def first(load: Any) -> Any:
            return firsts.get(load.source, load)

        value = tvm_ffi.structural_map(nest.value, (TensorLoad, first), order="pre")
        kept.append(dataclasses.replace(nest, value=value))
    written = {nest.buffer for nest in kept}
    temporary = tuple(buffer for buffer in nests.temporary if buffer in written)
    if not any(math.prod(map(int, buffer.shape)) for buffer in nests.results):
        kept, temporary = [dataclasses.replace(n, reduced=()) for n in kept if n.size == 0], ()
    return Nests(nests.function, tuple(kept), temporary)


def _is_static(parameter: Any) -> bool:
    shape = getattr(parameter, "shape", None)
    if shape is None or not all(isinstance(extent, int | tirx.IntImm) for extent in shape):
        return False
    return math.prod(int(extent) for extent in shape) <= _MOST_ELEMENTS


def _inline(plan: Any, root: Any) -> None:
    for way in (plan.compute_inline, plan.reverse_compute_inline):
        for block in list(plan.get_child_blocks(root)):
            if any(variable.iter_type != tirx.IterVar.DataPar for variable in plan.get(block).iter_vars):
                continue
            try:
                way(block)
            except s_tir.ScheduleError:
                pass  # an output, or used in a way that cannot be inlined


def _nest(plan: Any, reference: Any) -> Nest | None:
    block = plan.get(reference)
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
    if not _covers(plan, reference, math.prod(extent for _, extent in (*axes, *reduced))):
        return None
    if not isinstance(block.body, tirx.BufferStore):
        from hetero_tvm.schedules.cuda.tensor_program.arg_nests import arg_nest

        return arg_nest(block, axes, reduced)
    store, init = block.body, None
    if reduced:
        if not isinstance(block.init, tirx.BufferStore):
            return None
        init = block.init.value
    return Nest(tuple(axes), tuple(reduced), store.buffer, tuple(store.indices), store.value, init)


def _covers(plan: Any, reference: Any, size: int) -> bool:
    """Whether the loops around a block run through its axes one by one, and nothing else."""
    loops = plan.get_loops(reference)
    inner = plan.get(loops[-1]).body if loops else None
    if inner is not None and not isinstance(inner, s_tir.SBlockRealize):
        return False
    if inner is not None and not (isinstance(inner.predicate, tirx.IntImm) and int(inner.predicate)):
        return False
    variables = [plan.get(loop).loop_var for loop in loops]
    if inner is not None:
        for value in inner.iter_values:
            known = any(isinstance(value, tirx.Var) and value.same_as(variable) for variable in variables)
            if not known and not isinstance(value, tirx.IntImm):
                return False
    extents = [plan.get(loop).extent for loop in loops]
    return all(isinstance(e, tirx.IntImm) for e in extents) and math.prod(map(int, extents)) == size


# --- flat indices ------------------------------------------------------------------------------
def substitute(expression: Any, values: Mapping[Any, Any]) -> Any:
    """The expression with variables replaced."""

    def value(variable: Any) -> Any:
        return values.get(variable, variable)

    return tvm_ffi.structural_map(expression, (tvm.ir.Var, value))


def unflatten(axes: tuple[tuple[Any, int], ...], index: Any) -> dict[Any, Any]:
    """The value of each axis at a flat index."""
    values, below = {}, 1
    for position in range(len(axes) - 1, -1, -1):
        variable, extent = axes[position]
        if extent == 1:
            values[variable] = tirx.const(0, str(variable.ty.dtype))
            continue
        place = tirx.floordiv(index, below) if below > 1 else index
        outermost = all(e == 1 for _, e in axes[:position])
        values[variable] = place if outermost else tirx.floormod(place, extent)
        below *= extent
    return values


def offset(buffer: Any, indices: Any) -> Any:
    """Flat place of an element of a compact buffer."""
    place: Any = None
    for extent, index in zip(buffer.shape, indices, strict=True):
        place = index if place is None else place * int(extent) + index
    return tirx.const(0, "int32") if place is None else place


def loads_of(expression: Any) -> list[tuple[Any, bool]]:
    """Every load of an expression, and whether only a condition leads to it."""
    found: list[tuple[Any, bool]] = []

    def visit(node: Any, guarded: bool) -> None:
        if isinstance(node, TensorLoad):
            found.append((node, guarded))
            for index in node.indices:
                visit(index, guarded)
            return
        if is_conditional(node):
            visit(node.args[0], guarded)
            for branch in node.args[1:]:
                visit(branch, True)
            return
        for child in _children(node):
            visit(child, guarded)

    visit(expression, False)
    return found


def is_conditional(node: Any) -> bool:
    """Whether only one of two values is computed (``Select`` computes both)."""
    return isinstance(node, tvm.ir.Call) and getattr(node.op, "name", "") == "prim.if_then_else"


def _children(node: Any) -> list[Any]:
    if isinstance(node, tvm.ir.Call):
        return list(node.args)
    names = ("a", "b", "value", "condition", "true_value", "false_value", "base", "stride")
    return [child for name in names if (child := getattr(node, name, None)) is not None]
