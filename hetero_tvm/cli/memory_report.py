"""Report of a model's memory plan, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetero_tvm.host.terminal import Column, Table, table
from hetero_tvm.memory.model_plan import Arena, MemoryPlan

_LARGEST = 12
"""Tensors in the table of the largest."""


def report(plan: MemoryPlan | Mapping[str, Any]) -> dict[str, Any]:
    """Figures of a plan (or of a manifest's ``memory``), in bytes, as JSON values.

    ``naive`` is what the tensors take without sharing, ``static_plan`` what TVM's
    StaticPlanBlockMemory takes for them, ``peak`` what the arenas take, ``lower_bound`` the most bytes
    live at once (no plan takes less); ``largest`` are the tensors at the step with most bytes live.

    Raises :class:`UsageError` for a plan of another version.
    """
    plan = plan if isinstance(plan, MemoryPlan) else MemoryPlan.from_json(plan)
    tensors = [t for arena in plan.arenas for t in arena.tensors]
    return {
        "naive": plan.naive,
        "static_plan": plan.static_plan,
        "peak": plan.peak,
        "lower_bound": plan.lower_bound,
        "gap": plan.peak / plan.lower_bound - 1 if plan.lower_bound else 0.0,
        "without_in_place": sum(arena.live_without_sharing for arena in plan.arenas),
        "outputs": plan.outputs,
        "workspaces": max((t.nbytes for t in tensors if t.workspace), default=0),
        "per_thread": dict(plan.stack),
        "tensors": len(tensors),
        "buffers": sum(len(arena.problem) for arena in plan.arenas),
        "steps": plan.steps,
        "in_place": list(plan.in_place),
        "joined": list(plan.joined),
        "refused": dict(plan.refused),
        "arenas": [_arena(arena) for arena in plan.arenas],
    }


def tables(plan: MemoryPlan | Mapping[str, Any], width: int) -> list[Table]:
    """The report as tables of at most ``width`` columns, in the order of printing."""
    figures = report(plan)
    bound = figures["lower_bound"]
    rows = []
    for name, nbytes in (
        ("every tensor its own memory", figures["naive"]),
        ("TVM's StaticPlanBlockMemory", figures["static_plan"]),
        ("this plan", figures["peak"]),
        ("lower bound (most bytes live at once)", bound),
        ("lower bound if nothing worked in place", figures["without_in_place"]),
        ("results, allocated for the caller", figures["outputs"]),
        ("largest workspace of a kernel (in the plan)", figures["workspaces"]),
    ):
        ratio = f"{nbytes / bound:.3f}" if nbytes is not None and bound else "-"
        rows.append((name, "-" if nbytes is None else f"{nbytes:,}", ratio))
    caption = (
        f"{figures['tensors']} tensors in {figures['buffers']} buffers over {figures['steps']} steps; "
        f"{len(figures['in_place'])} calls work in place"
    )
    if figures["joined"]:
        caption += f", {len(figures['joined'])} concatenations copy nothing"
    columns = (Column("", text=True), Column("bytes"), Column("of the lower bound"))
    found = [table("memory of one inference", columns, rows, width, caption)]
    columns = (
        Column("tensor", text=True),
        Column("kernel", text=True, rank=2),
        Column("steps", rank=1),
        Column("offset"),
        Column("bytes"),
    )
    for arena in figures["arenas"]:
        rows = [
            (t["name"], t["kernel"], f"{t['lower']}-{t['upper'] - 1}", f"{t['offset']:,}", f"{t['nbytes']:,}")
            for t in arena["largest"]
        ]
        title = f"{arena['device']}: live at step {arena['fullest_step']}"
        found.append(table(title, columns, rows, width))
    if figures["refused"]:
        columns = (Column("kernel: operand", text=True), Column("why", text=True))
        title = "not in place, though nobody reads the operand later"
        found.append(table(title, columns, list(figures["refused"].items()), width))
    if figures["per_thread"]:
        columns = (Column("kernel", text=True), Column("bytes"))
        rows = [(name, f"{nbytes:,}") for name, nbytes in figures["per_thread"].items()]
        found.append(table("scratch of each thread, from the runtime's pool", columns, rows, width))
    return found


def plot(plan: MemoryPlan | Mapping[str, Any], path: str | Path, title: str = "") -> list[Path]:
    """Draw each arena over the steps of the model to ``path`` (PNG, SVG or PDF).

    Several arenas go to files with a number before the ending.  Returns the files.  Raises
    :class:`UsageError` for another ending or a path that cannot be written.
    """
    from hetero_tvm.memory.plot import plot as draw

    plan = plan if isinstance(plan, MemoryPlan) else MemoryPlan.from_json(plan)
    path = Path(path)
    files = []
    for number, arena in enumerate(plan.arenas):
        target = path if len(plan.arenas) == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")
        name = title if len(plan.arenas) == 1 else f"{title} {arena.device}".strip()
        files.append(draw(arena.problem, arena.plan.offsets, target, title=name))
    return files


def _arena(arena: Arena) -> dict[str, Any]:
    changes: dict[int, int] = {}
    for b in arena.problem.buffers:
        changes[b.lower] = changes.get(b.lower, 0) + b.size
        changes[b.upper] = changes.get(b.upper, 0) - b.size
    live = most = fullest = 0
    for step in sorted(changes):
        live += changes[step]
        if live > most:
            most, fullest = live, step
    there = sorted(
        (t for t in arena.tensors if t.lower <= fullest < t.upper), key=lambda t: (-t.nbytes, t.name)
    )
    return {
        "device": arena.device,
        "peak": arena.plan.peak,
        "lower_bound": arena.plan.lower_bound,
        "optimal": arena.plan.optimal,
        "fullest_step": fullest,
        "live_there": most,
        "largest": [arena.row(t) for t in there[:_LARGEST]],
    }
