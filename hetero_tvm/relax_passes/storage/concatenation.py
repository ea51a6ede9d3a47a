"""Concatenations that cost nothing: their parts are written where they belong.

A concatenation whose parts follow one another in memory (all dimensions before its axis are 1) needs no
kernel when each part is a kernel's result that may lie inside the whole.  :class:`JoinParts` marks such
concatenations in the graph, so that nothing fuses with them; when memory is planned, :func:`parts_of` finds
the calls again and says at which bytes of the whole each part begins.

The whole lives from its first part's kernel on.  A part that is itself a concatenation takes its own parts
along (DenseNet's blocks are one buffer that grows).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hetero_tvm.host.tvm import Expr, IRModule, PrimFunc, Var, relax, te, tirx, tvm
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, is_tensor
from hetero_tvm.relax_passes.rewriting.rule import GraphPass, Report
from hetero_tvm.relax_passes.storage.live_ranges import ELSEWHERE, KernelCall, LiveRanges, kernel_of

JOINED = "hetero_tvm.joined"
"""Attribute of the kernel of a marked concatenation."""
_ALIGNMENT = 64
"""Alignment of every kernel's operands, in bytes."""
_LEAST_BYTES = 16 << 10
"""Size below which a copy is not worth a kernel of its own, were it left after all."""
_VIEWS = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")


class JoinParts(GraphPass):
    """``concat(parts)`` -> a kernel that the memory plan can leave out."""

    name = "concatenation_in_place"

    def run(self, graph: Graph, report: Report) -> None:
        taken: set[Var] = set()
        for var in graph.bindings():
            parts = _parts(graph, var)
            if parts is None or (roots := self._roots(graph, parts)) is None or taken & roots:
                continue
            taken |= roots
            shapes, axis = [_static(part) for part in parts], _axis(graph, var)
            function = _copy(shapes, axis, dtype_of(var))
            graph.replace(var, graph.call_function(function, "concatenate", parts, var))
            report.fusions[self.name] = report.fusions.get(self.name, 0) + 1

    def _roots(self, graph: Graph, parts: list[Expr]) -> set[Var] | None:
        """The kernels' results that the parts are or view, if they may all lie in the whole.

        Half of it must come from kernels that nothing fuses with: what is left would be computed in the
        concatenation's own kernel otherwise, which copies it no more often.
        """
        roots = [_root(graph, part) for part in parts]
        if None in roots or len({*roots}) < len(roots):
            return None
        sizes = [math.prod(_static(root)) for root in roots]
        made = sum(size for root, size in zip(roots, sizes, strict=True) if _is_kernel(graph, root))
        return set(roots) if 2 * made >= sum(sizes) else None


def _parts(graph: Graph, var: Var) -> list[Expr] | None:
    """Parts of a concatenation that lie one behind the other in it, at aligned places."""
    if graph.op_name(var) != "relax.concat" or (axis := _axis(graph, var)) is None:
        return None
    parts = graph.fields(graph.value(var).args[0])
    shapes = [_static(part) for part in parts]
    if len(parts) < 2 or None in shapes or math.prod(shapes[0][:axis]) != 1:
        return None
    item = tvm.DataType(dtype_of(var)).bits // 8
    sizes = [item * math.prod(shape) for shape in shapes]
    if sum(sizes) < _LEAST_BYTES or 0 in sizes or any(size % _ALIGNMENT for size in sizes[:-1]):
        return None
    return parts


def _axis(graph: Graph, var: Var) -> int | None:
    axis, shape = graph.value(var).attrs.axis, _static(var)
    return None if axis is None or not shape else int(axis) % len(shape)


def _static(expr: Expr) -> tuple[int, ...] | None:
    """Shape of a tensor, where all of it is known."""
    if not is_tensor(expr) or expr.ty.shape is None:
        return None
    extents = list(expr.ty.shape)
    known = all(isinstance(extent, int | tirx.IntImm) for extent in extents)
    return tuple(int(extent) for extent in extents) if known else None


def _root(graph: Graph, part: Expr) -> Var | None:
    """The variable that ``part`` is a view of, if it is computed and no result of the model."""
    while isinstance(part, relax.Var) and None not in graph.users(part):
        value = graph.value(part)
        if not isinstance(value, relax.Call):
            return None
        if graph.op_name(part) not in _VIEWS:
            return part if _static(part) is not None else None
        part = value.args[0]
    return None


def _is_kernel(graph: Graph, var: Var) -> bool:
    """Whether ``var`` comes from a kernel that nothing fuses with."""
    call = graph.value(var)
    if call.op != _CALL_TIR:
        return False
    attrs = graph.functions()[call.args[0]].attrs or {}
    return "op_pattern" in attrs and int(attrs["op_pattern"]) == 8


def _copy(shapes: list[tuple[int, ...]], axis: int, dtype: str) -> PrimFunc:
    """The concatenation as it is computed where the plan cannot leave it out."""
    parts = [te.placeholder(shape, dtype, f"part{n}") for n, shape in enumerate(shapes)]
    whole = tvm.topi.concatenate(parts, axis)
    function = te.create_prim_func([*parts, whole])
    function = function.without_attr("global_symbol")
    return function.with_attr({JOINED: True, "op_pattern": 8, "tirx.noalias": True})


def part_trees(module: IRModule) -> IRModule:
    """Mark wide concatenations whose results are concatenated again, so that nothing fuses with them.

    In one kernel each element would look through all parts of the whole tree, one after the other.
    """
    wide = {call.args[0] for _, call in _kernels(module) if len(module[call.args[0]].params) > _WIDE}
    if not wide:
        return module
    made = {var: call.args[0] for var, call in _kernels(module) if call.args[0] in wide}
    apart = {
        made[part]
        for _, call in _kernels(module)
        if len(module[call.args[0]].params) > _JOINING
        for part in call.args[1]
        if isinstance(part, relax.Var) and part in made
    }
    for name in apart:
        module[name] = module[name].with_attr("op_pattern", 8)
    return module


def _kernels(module: IRModule) -> Iterator[tuple[Var, relax.Call]]:
    """Calls of kernels in ``main``, and the variables that they are bound to."""
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            if isinstance(value, relax.Call) and value.op == _CALL_TIR:
                yield binding.var, value


_WIDE, _JOINING = 32, 4
"""Parameters beyond which an operator's kernel is that of a wide concatenation, and one of several parts."""


def is_joined(function: PrimFunc) -> bool:
    """Whether a kernel is that of a marked concatenation."""
    return JOINED in (function.attrs or {})


def parts_of(module: IRModule, ranges: LiveRanges) -> Iterator[tuple[KernelCall, int, dict[int, int]]]:
    """Calls of marked concatenations whose parts may all lie in the whole: the call, the whole's number, and
    the first byte of each part's storage, by number."""
    taken: set[int] = set()
    for call in ranges.calls:
        function = kernel_of(module, call)
        if function is None or not is_joined(function):
            continue
        *numbers, whole = (_only(ranges, arg) for arg in call.args)
        parts = [ranges.storages[number] for number in numbers if number is not None]
        if whole is None or len(parts) < len(numbers) or len({*numbers, whole}) <= len(numbers):
            continue
        target = ranges.storages[whole]
        inside = all(part.plannable and part.number not in taken for part in parts)
        alike = all(part.device == target.device for part in parts)
        if inside and alike and target.lower == call.step and _static(call.args[-1]) is not None:
            begins, at = {}, 0
            for part in parts:
                begins[part.number], at = at, at + part.nbytes
            if at == target.nbytes:
                taken |= begins.keys()
                yield call, whole, begins


def _only(ranges: LiveRanges, arg: Expr) -> int | None:
    """The one storage that an argument lies in."""
    numbers = ranges.of(arg)
    return next(iter(numbers)) if len(numbers) == 1 and ELSEWHERE not in numbers else None


_CALL_TIR = tvm.ir.Op.get("relax.call_tir")
