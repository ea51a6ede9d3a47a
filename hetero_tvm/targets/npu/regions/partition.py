"""Partition of a model: operators on the NPU are grouped into regions as large as is legal.

Every binding gets a stage.  An operator on the NPU is in the stage of the NPU operators that it
reads, or in the one after that of a host operator; so between two operators of one stage no path leads
through the host, and each stage is one region: intermediate results stay in the NPU's memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hetero_tvm.host.terminal import figure
from hetero_tvm.host.tvm import Expr, GlobalVar, IRModule, RelaxFunction, Var, relax, tvm
from hetero_tvm.relax_passes.rewriting.fused import is_call_tir
from hetero_tvm.relax_passes.rewriting.graph import dtype_of, is_tensor, shape_of, variables_in
from hetero_tvm.schedules.task import Task

Bindings = Sequence[tuple[Var, Expr]]

LEAST_INTENSITY = 4.0
"""FLOPs per byte that crosses the border below which a region is not worth the transfer."""


@dataclass
class Placement:
    """Account of the operators that run on the NPU, and of the reasons why others do not."""

    operators: int = 0
    placed: int = 0
    """Operators that run on the NPU."""
    flops: int = 0
    placed_flops: int = 0
    """FLOPs of the operators that run on the NPU."""
    left: list[dict[str, str]] = field(default_factory=list)
    """Operators on the host: name, node, reason."""

    def __str__(self) -> str:
        share = 100.0 * self.placed_flops / self.flops if self.flops else 100.0
        text = f"{self.placed} of {self.operators} operators, {share:.1f}% of FLOPs on npu"
        if self.left:
            reasons = "; ".join(f"{entry['operator']}: {entry['reason']}" for entry in self.left[:6])
            more = f"; and {len(self.left) - 6} more" if len(self.left) > 6 else ""
            text += f"; {len(self.left)} left: {reasons}{more}"
        return text


@dataclass
class Regions:
    """The bindings of ``main`` in an order in which every region is consecutive."""

    order: list[tuple[Var, Expr]]
    """Pairs (variable, value), both host bindings and those of regions."""
    region_of: dict[Var, int]
    """Number of the region of every variable that is computed on the NPU."""


def partition(
    module: IRModule, tasks: Mapping[GlobalVar, Task], refusals: Mapping[str, str]
) -> tuple[Regions, Placement]:
    """Group the bindings of ``main``.

    Parameters
    ----------
    tasks : task of every function that ``main`` calls.
    refusals : by task key, why the NPU does not take it; other tasks are taken.
    """
    main = module["main"]
    bindings = [(b.var, b.value) for block in main.body.blocks for b in block.bindings]
    rejected: dict[Var, str] = {}
    while True:
        stage, on_npu = _stages(bindings, tasks, refusals, rejected)
        thin = _not_worth(bindings, stage, on_npu, tasks, main)
        if not thin:
            break
        rejected.update(thin)
    order = sorted(
        range(len(bindings)), key=lambda i: (stage[bindings[i][0]], bindings[i][0] not in on_npu, i)
    )
    placement = _report(bindings, on_npu, tasks, refusals, rejected)
    regions = Regions([bindings[i] for i in order], {var: stage[var] for var in on_npu})
    return regions, placement


def _task(value: Expr, tasks: Mapping[GlobalVar, Task]) -> Task | None:
    return tasks.get(value.args[0]) if is_call_tir(value) else None


def _is_view(value: Expr) -> bool:
    called = value.op if isinstance(value, tvm.ir.Call) else None
    return isinstance(called, tvm.ir.Op) and called.name == "relax.reshape"


def _stages(
    bindings: Bindings,
    tasks: Mapping[GlobalVar, Task],
    refusals: Mapping[str, str],
    rejected: Mapping[Var, str],
) -> tuple[dict[Var, int], set[Var]]:
    """Stage of every variable, and the variables that are computed on the NPU."""
    stage: dict[Var, int] = {}
    on_npu: set[Var] = set()
    for var, value in bindings:
        used = [v for v in variables_in(value) if v in stage]
        task = _task(value, tasks)
        taken = task is not None and task.key not in refusals and var not in rejected
        if _is_view(value) and isinstance(value.args[0], relax.Var):
            # A view of a tensor in the NPU's memory stays there; so do views of views.
            taken = value.args[0] in on_npu and var not in rejected
        if taken:
            stage[var] = max((stage[v] + (v not in on_npu) for v in used), default=1)
            stage[var] = max(stage[var], 1)
            on_npu.add(var)
        else:
            stage[var] = max((stage[v] for v in used), default=0)
    return stage, on_npu


def _not_worth(
    bindings: Bindings,
    stage: Mapping[Var, int],
    on_npu: set[Var],
    tasks: Mapping[GlobalVar, Task],
    main: RelaxFunction,
) -> dict[Var, str]:
    """Reasons to leave regions whose work does not pay for moving their inputs and outputs, by variable."""
    users: dict[Var, set[Var | None]] = {}
    for var, value in bindings:
        for used in variables_in(value):
            users.setdefault(used, set()).add(var)
    for used in variables_in(main.body.body):
        users.setdefault(used, set()).add(None)
    result: dict[Var, str] = {}
    for region in sorted({stage[v] for v in on_npu}):
        members = [(v, value) for v, value in bindings if v in on_npu and stage[v] == region]
        inside = {v for v, _ in members}
        flops = sum(task.flops for _, value in members if (task := _task(value, tasks)) is not None)
        border = {v for _, value in members for v in variables_in(value)} - inside
        border |= {v for v in inside if any(u not in inside for u in users.get(v, ()))}
        crossing = sum(_bytes(v) for v in border if is_tensor(v))
        if flops < LEAST_INTENSITY * crossing:
            reason = f"not worth the transfer: {figure(flops / 1e6, 2)} MFLOP for {figure(crossing / 1e3)} kB"
            result.update(dict.fromkeys(inside, reason))
    return result


def _bytes(var: Var) -> int:
    """Bytes of a tensor between host and NPU: floats as the host has them, integers of at most 4 bytes."""
    return math.prod(shape_of(var)) * min(4, np.dtype(dtype_of(var)).itemsize)


def _report(
    bindings: Bindings,
    on_npu: set[Var],
    tasks: Mapping[GlobalVar, Task],
    refusals: Mapping[str, str],
    rejected: Mapping[Var, str],
) -> Placement:
    placement = Placement()
    for var, value in bindings:
        task = _task(value, tasks)
        if task is None:
            continue
        placement.operators += 1
        placement.flops += task.flops
        if var in on_npu:
            placement.placed += 1
            placement.placed_flops += task.flops
        else:
            reason = rejected.get(var) or refusals.get(task.key, "not taken")
            placement.left.append({"operator": task.name, "node": var.name, "reason": reason})
    return placement
