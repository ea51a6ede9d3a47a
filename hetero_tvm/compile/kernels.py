"""Kernels for tasks: every call gets its scheduled kernel and constants in the layout it wants."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from hetero_tvm.errors import BuildError, last_line
from hetero_tvm.host.constants import constant
from hetero_tvm.host.expanded import remember
from hetero_tvm.host.tvm import relax, tvm
from hetero_tvm.records.candidates import apply_trace
from hetero_tvm.records.choose import DEFAULT, Choice
from hetero_tvm.relax_passes.rewriting.fused import is_call_tir, is_ready
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of
from hetero_tvm.schedules.base import Packer, Point
from hetero_tvm.schedules.task import Task, symbol, task_key
from hetero_tvm.targets.base import Target

Packed = dict[Any, tuple[Any, Any]]
"""Constants as kernels want them, by operand and kernel; beside each the constant that it was made of."""

_TASK = "hetero_tvm.task"
"""Attribute of a kernel: the key of the task that it was made for."""


def apply_choices(
    module: Any,
    tasks: Sequence[Task],
    choices: Mapping[str, Choice],
    target: Target,
    suffix: str = "",
    packed: Packed | None = None,
) -> Any:
    """The module with a kernel, or the region of an offloading target, for every workload.

    ``choices``: task key -> what its kernel is built from; ``suffix`` and ``packed`` as in
    :func:`apply_schedules`.
    """
    points = {key: choice.point for key, choice in choices.items() if choice.point is not None}
    traces = {key: choice.trace for key, choice in choices.items() if choice.trace is not None}
    scheduled = {
        task.key: apply_trace(task.workload, traces[task.key]) for task in tasks if task.key in traces
    }
    module, tasks, points = target.offload_regions(module, tasks, points)
    return target.finalize(apply_schedules(module, tasks, points, scheduled, target, suffix, packed))


def packed_once(packed: Packed | None, given: Any, array: np.ndarray, pack: Packer, how: Hashable) -> Any:
    """A constant as a kernel wants it; the same again where it has been packed the same way before."""
    if packed is None or not hasattr(given, "value"):
        return _constant_of(pack(array))
    key = (given.value.data_ptr(), array.shape, str(array.dtype), how)
    if key not in packed:
        packed[key] = given, _constant_of(pack(array))
    return packed[key][1]


def _constant_of(array: np.ndarray) -> Any:
    made = constant(np.ascontiguousarray(array))
    remember(made.value, array)
    return made


def usable_choices(tasks: Sequence[Task], choices: Mapping[str, Choice]) -> dict[str, Choice]:
    """The choices, without recorded traces that no longer apply: a warning names each record and its file.

    Such a trace comes from another version of TVM, or was edited; its kernel gets the untuned schedule.
    """
    usable = dict(choices)
    for task in tasks:
        choice = choices[task.key]
        if choice.trace is None:
            continue
        try:
            apply_trace(task.workload, choice.trace)
        except Exception as error:  # TVM raises many kinds
            warnings.warn(
                f"{task.name}: the trace of {choice.origin} in {choice.file} does not apply "
                f"({last_line(error)}); the kernel gets its untuned schedule",
                stacklevel=2,
            )
            usable[task.key] = Choice(None, None, DEFAULT)
    return usable


def apply_schedules(
    module: Any,
    tasks: Sequence[Task],
    points: Mapping[str, Point],
    scheduled: Mapping[str, Any],
    target: Target,
    suffix: str = "",
    packed: Packed | None = None,
) -> Any:
    """Replace every workload by its scheduled kernel.

    Parameters
    ----------
    points : task key -> point of the task's space (default point when absent).
    scheduled : task key -> scheduled PrimFunc, or a module of it alone, for tasks without a space whose
        record is a trace.
    suffix : ends the names of the kernels, so that those of several variants can live side by side.
    packed : constants that another form of the model has packed already; new ones are added.

    Packed constants are new arrays; the plain ones disappear with the calls that used them, so no
    weight is stored twice unless two kernels want it in two layouts.
    """
    by_key = {task.key: task for task in tasks}
    graph = Graph(module)
    task_of: dict[Any, Task] = {}
    kernels: dict[str, tuple[Any, dict[int, Packer]]] = {}
    for var in graph.bindings():
        call = graph.value(var)
        if not is_call_tir(call):
            continue
        function = call.args[0]
        if is_ready(module[function]):
            continue
        if function not in task_of:
            task_of[function] = by_key[task_key(module[function])]
        task = task_of[function]
        if task.key not in kernels:
            kernel, packers = _scheduled(task, points, scheduled, target)
            kernels[task.key] = (
                graph.add_function(target.stamp(marked(kernel, task)), symbol(task.name) + suffix),
                packers,
            )
        kernel, packers = kernels[task.key]
        args = list(call.args[1].fields)
        for index, pack in packers.items():
            array = array_of(graph.value(args[index]))
            if array is None:
                raise BuildError(
                    f"{task.name}: operand {task.op.inputs[index].name} is declared constant, and is not",
                    hint="this is a fault of the fusion that made the call; switch it off and report it",
                )
            args[index] = packed_once(
                packed, args[index], array, pack, (task.key, index, str(points.get(task.key)))
            )
        types = list(var.ty.fields) if isinstance(var.ty, relax.TupleType) else var.ty
        graph.replace(var, relax.call_tir(kernel, args, out_ty=types))
    return graph.rebuild()[0]


def _scheduled(
    task: Task, points: Mapping[str, Point], scheduled: Mapping[str, Any], target: Target
) -> tuple[Any, dict[int, Packer]]:
    """The kernel of a task, and how its constant operands are packed."""
    if task.space is None:
        return scheduled.get(task.key) or _generic(task, target), {}
    point = points.get(task.key) or task.space.default(task.op, target.machine)
    return (
        task.space.emit(task.op, point, target.machine),
        task.space.pack(task.op, point, target.machine),
    )


def _generic(task: Task, target: Target) -> Any:
    """The target's schedule for any kernel; its refusal names the kernel and the nodes of the model."""
    try:
        return target.schedule_generic(task.workload)
    except BuildError as error:
        where = f"{task.name} (of {', '.join(task.calls[0])})"
        raise BuildError(f"{where}: {error.message}", problems=error.problems, hint=error.hint) from error


def symbols(module: Any) -> dict[str, tuple[str, ...]]:
    """Task key -> names in the library of its kernel and of the forms of it that work in place."""
    found: dict[str, tuple[str, ...]] = {}
    for variable, function in module.functions.items():
        if function.attrs and _TASK in function.attrs:
            key = str(function.attrs[_TASK])
            found[key] = (*found.get(key, ()), variable.name_hint)
    return found


def marked(kernel: Any, task: Task) -> Any:
    """The kernel without a symbol of its own; an applied trace comes as a module with one function."""
    if isinstance(kernel, tvm.IRModule):
        (kernel,) = kernel.functions.values()
    if kernel.attrs and "global_symbol" in kernel.attrs:
        kernel = kernel.without_attr("global_symbol")
    return kernel.with_attr(_TASK, task.key)
