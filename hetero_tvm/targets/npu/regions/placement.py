"""Placement: which operators of a model run on the NPU, and why the others do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetero_tvm.host.tvm import GlobalVar, IRModule, relax
from hetero_tvm.relax_passes.rewriting.fused import is_call_tir, is_check
from hetero_tvm.schedules.npu.base import NpuSpace
from hetero_tvm.schedules.task import Task, task_key
from hetero_tvm.targets.base import Target
from hetero_tvm.targets.npu.regions.partition import Placement, Regions, partition


@dataclass(frozen=True)
class PlacedModule:
    """A module whose operators are divided between host and NPU."""

    module: IRModule
    """The module without dataflow variables."""
    regions: Regions
    placement: Placement
    task_of: Mapping[GlobalVar, Task]
    """Task of every function that ``main`` calls, but for checks."""


def place(module: IRModule, tasks: Sequence[Task], target: Target) -> PlacedModule:
    """Decide for every binding of ``main`` where it runs."""
    module = relax.transform.ToNonDataflow()(module)
    by_key = {task.key: task for task in tasks}
    task_of: dict[GlobalVar, Task] = {}
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            if is_call_tir(binding.value) and binding.value.args[0] not in task_of:
                function = binding.value.args[0]
                if not is_check(module[function]):  # the host's, and no task
                    task_of[function] = by_key[task_key(module[function])]
    refusals = {task.key: reason for task in tasks if (reason := _refusal(task, target)) is not None}
    regions, placement = partition(module, task_of, refusals)
    return PlacedModule(module, regions, placement, task_of)


def _refusal(task: Task, target: Target) -> str | None:
    if isinstance(task.space, NpuSpace):
        return None
    if task.op is None:
        return "it has several results"
    # Spaces of other operators only say that they are none of this one's.
    reasons = (reason.partition(": ") for reason in target.space_for(task.op)[1])
    mine = [why for name, _, why in reasons if name.startswith("npu.") and not why.startswith("is for ")]
    return "; ".join(dict.fromkeys(mine)) or f"the NPU has no space for {task.op.kind}"
