"""Regions of the graph: bindings of ``main`` as kernels, and as a call into the NPU's library."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hetero_tvm.host.tvm import Call, Expr, GlobalVar, IRModule, RelaxFunction, Var, relax
from hetero_tvm.relax_passes.rewriting.fused import is_call_tir
from hetero_tvm.relax_passes.rewriting.graph import array_of, dtype_of, is_constant, shape_of, variables_in
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.task import Task
from hetero_tvm.targets.npu.regions import byoc
from hetero_tvm.targets.npu.regions.compile_region import RegionCompiler
from hetero_tvm.targets.npu.regions.partition import Bindings
from hetero_tvm.targets.npu.regions.placement import PlacedModule
from hetero_tvm.targets.npu.regions.region import KernelCache, RegionBuilder, Value
from hetero_tvm.targets.npu.regions.residency import RESIDENCY_KNOBS, ResidencyChoice, Step

_MADE_UP = re.compile(r"(lv|gv)\d*")
"""Variables that Relax named; all others bear names of the source model."""


class GraphRegion(RegionCompiler):
    """A region of the graph, and the Relax function that stands for it until code generation.

    Parameters
    ----------
    members : its bindings in order.
    outputs : variables that the host or other regions read.
    task_of : task of every function that members call.
    points : points of the spaces by task; defaults for tasks that have none.
    names : names of operators whose variables Relax named.
    """

    def __init__(
        self,
        name: str,
        members: Bindings,
        outputs: Sequence[Var],
        task_of: Mapping[GlobalVar, Task],
        points: Mapping[str, Point],
        names: Mapping[Var, str],
        cache: KernelCache,
    ):
        super().__init__(name, cache)
        self.members, self.outputs = members, list(outputs)
        self.task_of, self.points, self.names = task_of, points, names
        inside = {var for var, _ in members}
        used = (var for _, value in members for var in variables_in(value))
        self.inputs: list[Var] = list(dict.fromkeys(var for var in used if var not in inside))

    def prepare(self, builder: RegionBuilder) -> tuple[list[Step], list[tuple[str, Value]]]:
        values = {var: builder.input(var.name, shape_of(var), dtype_of(var)) for var in self.inputs}
        steps: list[Step] = []
        for var, value in self.members:
            if is_call_tir(value) and (source := self._renamed(value)) is not None:
                values[var] = Value(shape_of(var), dtype=dtype_of(var), source=values[source])
            elif is_call_tir(value):
                steps.append(self._step(var, value, values))
                values[var] = steps[-1].result
            else:
                values[var] = Value(shape_of(var), dtype=dtype_of(var), source=values[value.args[0]])
        return steps, [(self.names.get(var, var.name), values[var]) for var in self.outputs]

    def _renamed(self, call: Call) -> Var | None:
        """Operand of a call that changes none of the bytes that the NPU stores (a cast from the type in which
        it stores floats, say)."""
        task = self.task_of[call.args[0]]
        operands = [arg for arg in call.args[1].fields if not is_constant(arg)]
        single = len(operands) == len(call.args[1].fields) == 1
        return operands[0] if single and task.space.is_identity(task.op, self.machine) else None

    def _step(self, var: Var, call: Call, values: Mapping[Var, Value]) -> Step:
        task = self.task_of[call.args[0]]
        arrays = [self._array(arg) for arg in call.args[1].fields]
        fields = zip(call.args[1].fields, arrays, strict=True)
        operands = [values[arg] if array is None else None for arg, array in fields]
        wanted, layout = task.space.layouts(task.op)
        result = Value(shape_of(var), dtype=dtype_of(var))
        name = self.names.get(var, var.name)
        point = self.points.get(task.key, {})
        recorded = {knob: choice for knob, choice in point.items() if knob not in RESIDENCY_KNOBS}
        if recorded == self._default(task):
            recorded = {}  # the best point for its surroundings, which the region knows
        return Step(
            task.space,
            task.op,
            recorded or None,
            operands,
            wanted,
            result,
            layout,
            name,
            arrays,
            residency=ResidencyChoice.of(point),
            task=task.key,
        )

    def _array(self, arg: Expr) -> np.ndarray | None:
        """Value of a constant operand, or zeros where contents do not matter."""
        if self.cache.contents or not is_constant(arg):
            return array_of(arg)
        return np.broadcast_to(np.zeros((), dtype_of(arg)), shape_of(arg))

    def _default(self, task: Task) -> Point:
        if task.key not in self.cache.defaults:
            self.cache.defaults[task.key] = dict(task.space.default(task.op, self.machine))
        return self.cache.defaults[task.key]

    def function(self) -> RelaxFunction:
        """The region as a Relax function, which the external code generator gets."""
        block = relax.BindingBlock([relax.VarBinding(var, value) for var, value in self.members])
        result = self.outputs[0] if len(self.outputs) == 1 else relax.Tuple(self.outputs)
        returns = result.ty if len(self.outputs) == 1 else relax.TupleType([v.ty for v in self.outputs])
        function = relax.Function(self.inputs, relax.SeqExpr([block], result), returns, True)
        function = relax.utils.copy_with_new_vars(function)
        return function.with_attr({"Codegen": byoc.CODEGEN, "global_symbol": self.name})

    def call(self, variable: GlobalVar, function: RelaxFunction) -> list[Any]:
        """Bindings of ``main`` that replace the members."""
        called = relax.Call(variable, list(self.inputs))
        if len(self.outputs) == 1:
            return [relax.VarBinding(self.outputs[0], called)]
        both = relax.Var(self.name, function.ret_ty)
        pieces = [relax.VarBinding(v, relax.TupleGetItem(both, n)) for n, v in enumerate(self.outputs)]
        return [relax.VarBinding(both, called), *pieces]


def divided(
    placed: PlacedModule,
    points: Mapping[str, Point],
    cache: KernelCache,
    region_type: type[GraphRegion] = GraphRegion,
) -> Iterator[Any]:
    """``main`` in order: bindings (``relax.VarBinding``) that stay on the host, and regions."""
    regions = placed.regions
    users = _users(placed)
    names = _names(placed.module, placed.task_of)
    count = 0
    for number, group in itertools.groupby(regions.order, lambda pair: regions.region_of.get(pair[0])):
        members = list(group)
        if number is None:
            yield from (relax.VarBinding(var, value) for var, value in members)
            continue
        outputs = [var for var, _ in members if any(user != number for user in users.get(var, ()))]
        yield region_type(f"hnpu_{count}", members, outputs, placed.task_of, points, names, cache)
        count += 1


def _users(placed: PlacedModule) -> dict[Var, set[int | None]]:
    """Numbers of the regions that use a variable; None for the host and the function's result."""
    users: dict[Var, set[int | None]] = {}
    for var, value in placed.regions.order:
        for used in variables_in(value):
            users.setdefault(used, set()).add(placed.regions.region_of.get(var))
    for used in set(variables_in(placed.module["main"].body.body)):
        users.setdefault(used, set()).add(None)
    return users


def _names(module: IRModule, task_of: Mapping[GlobalVar, Task]) -> dict[Var, str]:
    """Names of operators whose variables Relax named: the last source node of each, for profiles."""
    bindings = [binding for block in module["main"].body.blocks for binding in block.bindings]
    taken = {binding.var.name for binding in bindings}
    seen: dict[str, int] = {}
    names = {}
    for binding in bindings:
        if not is_call_tir(binding.value) or binding.value.args[0] not in task_of:
            continue
        task = task_of[binding.value.args[0]]
        call = seen[task.key] = seen.get(task.key, -1) + 1
        if _MADE_UP.fullmatch(binding.var.name) and call < task.count and task.calls[call]:
            name = task.calls[call][-1]
            while name in taken:
                name += "'"
            taken.add(name)
            names[binding.var] = name
    return names
