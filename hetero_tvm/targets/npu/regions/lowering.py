"""From an optimized module to one in which regions of ``main`` are calls into the NPU's library."""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hetero_tvm.host.tvm import relax
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.relax_passes.rewriting.fused import is_call_tir
from hetero_tvm.relax_passes.rewriting.graph import array_of, dtype_of, is_constant, shape_of, variables_in
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.npu.base import NpuSpace
from hetero_tvm.schedules.task import Task, task_key
from hetero_tvm.targets.npu.device.driver import Device
from hetero_tvm.targets.npu.regions import byoc
from hetero_tvm.targets.npu.regions.binding import L1Full
from hetero_tvm.targets.npu.regions.compile_region import RegionCompiler, Settled
from hetero_tvm.targets.npu.regions.features import ALL, Features
from hetero_tvm.targets.npu.regions.partition import Placement, Regions, partition
from hetero_tvm.targets.npu.regions.region import CompiledRegion, KernelCache, RegionBuilder, Value
from hetero_tvm.targets.npu.regions.residency import PLACING, Placing, Step
from hetero_tvm.targets.npu.regions.stored_regions import save

_MADE_UP = re.compile(r"(lv|gv)\d*")


def place(module: Any, tasks: Sequence[Task], target: Any) -> tuple[Any, Regions, Placement, dict[Any, Task]]:
    """Which bindings of ``main`` run on the NPU: the module without dataflow variables, the regions, the
    account, and tasks by GlobalVar."""
    module = relax.transform.ToNonDataflow()(module)
    by_key = {task.key: task for task in tasks}
    of_variable: dict[Any, Task] = {}
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            if is_call_tir(binding.value) and binding.value.args[0] not in of_variable:
                function = binding.value.args[0]
                of_variable[function] = by_key[task_key(module[function])]
    refusals = {task.key: reason for task in tasks if (reason := _refusal(task, target)) is not None}
    regions, placement = partition(module, of_variable, refusals)
    return module, regions, placement, of_variable


def _refusal(task: Task, target: Any) -> str | None:
    if isinstance(task.space, NpuSpace):
        return None
    if task.op is None:
        return "it has several results"
    # Spaces of other operators only say that they are none of this one's.
    reasons = (reason.partition(": ") for reason in target.space_for(task.op)[1])
    mine = [why for name, _, why in reasons if name.startswith("npu.") and not why.startswith("is for ")]
    return "; ".join(dict.fromkeys(mine)) or f"the NPU has no space for {task.op.kind}"


def lower_regions(
    module: Any, tasks: Sequence[Task], points: Mapping[str, Point], target: Any
) -> tuple[Any, list[CompiledRegion], Placement]:
    """Compile every region and replace it by a call of its function in an external module.

    Raises
    ------
    BuildError : a kernel cannot be generated, or the external module does not compile.
    """
    module, regions, placement, of_variable = place(module, tasks, target)
    if not regions.region_of:
        return module, [], placement
    cache = KernelCache(target.machine)
    main = module["main"]
    compiled: list[CompiledRegion] = []
    builder = relax.BlockBuilder(module)
    bindings: list[Any] = []
    for piece in _pieces(module, regions, of_variable, points, target.machine, cache):
        if isinstance(piece, relax.VarBinding):
            bindings.append(piece)
            continue
        compiled.append(piece.compile())
        function = piece.function()
        bindings += piece.call(builder.add_func(function, piece.name), function)
    result = _with_main(builder.get(), main, bindings)
    with tempfile.TemporaryDirectory(prefix="hetero_tvm-npu-") as folder:
        save(compiled, target.machine, Path(folder))
        result = relax.transform.RunCodegen({byoc.CODEGEN: {"folder": folder}}, ["main"])(result)
    if result.attrs is not None and "const_name_to_constant" in result.attrs:
        result = result.without_attr("const_name_to_constant")  # the regions hold their constants
    return relax.transform.DeadCodeElimination()(result), compiled, placement


def _pieces(
    module: Any, regions: Regions, of_variable: Mapping[Any, Task], points: Mapping[str, Point],
    machine: NpuMachine, cache: KernelCache,
) -> Iterator[Any]:  # fmt: skip
    """``main`` in its order: bindings that stay on the host as they are, and regions."""
    users = _users(regions, set(variables_in(module["main"].body.body)))
    names = _names(module, of_variable)
    count = 0
    for number, group in itertools.groupby(regions.order, lambda pair: regions.region_of.get(pair[0])):
        if number is None:
            yield from (relax.VarBinding(var, value) for var, value in group)
            continue
        yield _Region(f"hnpu_{count}", number, list(group), users, of_variable, points, machine, cache, names)
        count += 1


def _names(module: Any, of_variable: Mapping[Any, Task]) -> dict[Any, str]:
    """What profiles call the operators whose variables fusion made up: the last source node of each."""
    bindings = [binding for block in module["main"].body.blocks for binding in block.bindings]
    taken = {binding.var.name for binding in bindings}
    seen: dict[str, int] = {}
    names = {}
    for binding in bindings:
        if not is_call_tir(binding.value):
            continue
        task = of_variable[binding.value.args[0]]
        call = seen[task.key] = seen.get(task.key, -1) + 1
        if _MADE_UP.fullmatch(binding.var.name) and call < task.count and task.calls[call]:
            name = task.calls[call][-1]
            while name in taken:
                name += "'"
            taken.add(name)
            names[binding.var] = name
    return names


class RegionTimer:
    """Simulated cycles of all regions of a module, for one choice of points after another.

    Kernels are generated once per point, and what comes to the same code is simulated once.
    """

    def __init__(self, module: Any, tasks: Sequence[Task], target: Any):
        self._module, self._regions, _, self._of_variable = place(module, tasks, target)
        self._ops = {task.key: task.op for task in tasks}
        self._machine = target.machine
        self._cache = KernelCache(target.machine, contents=False)
        self._known: dict[Any, float | L1Full] = {}
        self.simulated = 0
        """So many regions."""
        self.places: dict[str, set[tuple[frozenset[int], int]]] = {}
        """Of the last choice of points: by task, which operands its calls have in L1, and bytes for their own
        part of it."""

    def cycles(self, points: Mapping[str, Point], device: Device | None) -> float:
        """With no device, only of code that was simulated before: else ``LookupError``.

        Raises
        ------
        BuildError, DriverError : there is no such model.
        """
        self.places = {}
        pieces = _pieces(
            self._module, self._regions, self._of_variable, points, self._machine, self._cache
        )
        regions = (piece for piece in pieces if isinstance(piece, _Region))
        return sum(
            region.first_that_fits(lambda settled, region=region: self._time(region, settled, device))
            for region in regions
        )

    def _time(self, region: _Region, settled: Settled, device: Device | None) -> float:
        key = (region.name, settled.key())
        if key not in self._known:
            if device is None:
                raise LookupError("this code was not simulated")
            try:
                program = device.load(region.emit(settled).stream)
                self.simulated += 1
                self._known[key] = device.time(program).counters.cycles
                device.unload(program)
            except L1Full as error:
                self._known[key] = error
        if isinstance(found := self._known[key], L1Full):
            raise found
        for step in settled.steps:
            if step.op != self._ops.get(step.task):  # a part of it
                continue
            operands = frozenset(index for index in step.held if index <= len(step.operands))
            self.places.setdefault(step.task, set()).add((operands, step.room))
        return found


def compile_regions(
    module: Any,
    tasks: Sequence[Task],
    points: Mapping[str, Point],
    target: Any,
    features: Features = ALL,
) -> list[CompiledRegion]:
    """The regions alone, without a library around them: what they cost."""
    module, regions, _, of_variable = place(module, tasks, target)
    cache = KernelCache(target.machine, features)
    pieces = _pieces(module, regions, of_variable, points, target.machine, cache)
    return [piece.compile() for piece in pieces if isinstance(piece, _Region)]


def _users(regions: Regions, results: set[Any]) -> dict[Any, set[Any]]:
    """Region numbers that use a variable; None for the host and the function's result."""
    users: dict[Any, set[Any]] = {}
    for var, value in regions.order:
        for used in variables_in(value):
            users.setdefault(used, set()).add(regions.region_of.get(var))
    for used in results:
        users.setdefault(used, set()).add(None)
    return users


class _Region(RegionCompiler):
    """A region of the graph, and the Relax function that stands for it until code generation."""

    def __init__(
        self, name, number, members, users, of_variable, points, machine: NpuMachine, cache: KernelCache,
        names: Mapping[Any, str],
    ):  # fmt: skip
        super().__init__(name, machine, cache)
        self.members, self.of_variable, self.points, self.names = members, of_variable, points, names
        inside = {var for var, _ in members}
        self.inputs: list[Any] = []
        for _, value in members:
            for used in variables_in(value):
                if used not in inside and used not in self.inputs:
                    self.inputs.append(used)
        self.outputs = [var for var, _ in members if any(u != number for u in users.get(var, ()))]

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

    def _renamed(self, call: Any) -> Any:
        """The operand of a call that does nothing to what the NPU keeps (a cast from the type that it keeps
        floats in, say)."""
        task = self.of_variable[call.args[0]]
        operands = [arg for arg in call.args[1].fields if not is_constant(arg)]
        alone = len(operands) == len(call.args[1].fields) == 1
        return operands[0] if alone and task.space.is_identity(task.op, self.machine) else None

    def _step(self, var: Any, call: Any, values: dict[Any, Value]) -> Step:
        task = self.of_variable[call.args[0]]
        arrays = [self._array(arg) for arg in call.args[1].fields]
        fields = zip(call.args[1].fields, arrays, strict=True)
        operands = [values[arg] if array is None else None for arg, array in fields]
        wanted, layout = task.space.layouts(task.op)
        result = Value(shape_of(var), dtype=dtype_of(var))
        name = self.names.get(var, var.name)
        point = self.points.get(task.key, {})
        recorded = {knob: choice for knob, choice in point.items() if knob not in PLACING}
        if recorded == self._default(task):
            recorded = {}  # what is best in its place, which the region knows
        return Step(
            task.space, task.op, recorded or None, operands, wanted, result, layout, name, arrays,
            placing=Placing.of(point), task=task.key,
        )  # fmt: skip

    def _array(self, arg: Any) -> np.ndarray | None:
        """The value of a constant operand, or zeros where it does not matter."""
        if self.cache.contents or not is_constant(arg):
            return array_of(arg)
        return np.broadcast_to(np.zeros((), dtype_of(arg)), shape_of(arg))

    def _default(self, task: Task) -> Point:
        if task.key not in self.cache.defaults:
            self.cache.defaults[task.key] = dict(task.space.default(task.op, self.machine))
        return self.cache.defaults[task.key]

    def function(self) -> Any:
        """The region as Relax: what an external code generator is called with."""
        block = relax.BindingBlock([relax.VarBinding(var, value) for var, value in self.members])
        result = self.outputs[0] if len(self.outputs) == 1 else relax.Tuple(self.outputs)
        returns = result.ty if len(self.outputs) == 1 else relax.TupleType([v.ty for v in self.outputs])
        function = relax.Function(self.inputs, relax.SeqExpr([block], result), returns, True)
        function = relax.utils.copy_with_new_vars(function)
        return function.with_attr({"Codegen": byoc.CODEGEN, "global_symbol": self.name})

    def call(self, variable: Any, function: Any) -> list[Any]:
        """Bindings of ``main`` in place of the members."""
        called = relax.Call(variable, list(self.inputs))
        if len(self.outputs) == 1:
            return [relax.VarBinding(self.outputs[0], called)]
        both = relax.Var(self.name, function.ret_ty)
        pieces = [relax.VarBinding(v, relax.TupleGetItem(both, n)) for n, v in enumerate(self.outputs)]
        return [relax.VarBinding(both, called), *pieces]


def _with_main(module: Any, main: Any, bindings: list[Any]) -> Any:
    """The module with other bindings in ``main``."""
    result = module.clone()
    body = relax.SeqExpr([relax.BindingBlock(bindings)], main.body.body)
    result.update_func(
        result.get_global_var("main"),
        relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs),
    )
    return relax.transform.Normalize()(result)
