"""Texts of ``tune`` before its first trial and after its last: plan, tasks, next commands (``build`` has
them too)."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_tvm import host
from hetero_tvm.generation.facts import EMBEDDING
from hetero_tvm.host.install import as_typed
from hetero_tvm.host.terminal import Column, console, figure, number_of, operations, table

if TYPE_CHECKING:
    from hetero_tvm.api import OptimizedModel

_SECONDS_PER_TRIAL = 0.12
_SECONDS_PER_TASK = 0.3
_START_SECONDS = 2.0


def expected_seconds(tasks: int, trials: int | None, minutes: float | None) -> float | None:
    """Estimate of the seconds that a search takes; None: without limit."""
    seconds = None
    if trials is not None:
        seconds = _START_SECONDS + _SECONDS_PER_TRIAL * trials + _SECONDS_PER_TASK * tasks
    if minutes is not None:
        seconds = min(seconds or float("inf"), 60 * minutes)
    return seconds


def plan_lines(
    optimized: OptimizedModel,
    trials: int | None,
    minutes: float | None,
    logs: Path | None,
    use_shipped: bool,
) -> list[str]:
    """Model, target, threads, kernels, records and budget of a search, a line each."""
    from hetero_tvm.api import record_store
    from hetero_tvm.compile.representative import to_tune
    from hetero_tvm.records.choose import DEFAULT, choose

    signature, tasks = optimized.signature, to_tune(optimized).tasks
    described = optimized.target.describe()
    device = [described.get("device"), *described.get("archs", ()), described.get("cpu")]
    threads = described["threads"]
    first = optimized.variants()[0]
    store = record_store(first, logs, use_shipped)
    choices = choose(to_tune(first).tasks, first.machine, store).values()
    origins = Counter("default" if choice.origin == DEFAULT else "record" for choice in choices)
    spaces = Counter(task.space.name if task.space is not None else "stock" for task in tasks)
    work = sum(task.uses * task.flops for task in tasks)
    calls = sum(task.count for task in optimized.tasks)
    seconds = expected_seconds(len(tasks), trials, minutes)
    budget = "trials without limit" if trials is None else number_of(trials, "trial")
    if minutes is not None:
        budget += f", {minutes:g} minutes at most"
    if seconds is not None:
        budget += f", about {seconds:.0f} s on idle cores"
    cores = f" on cores {_ranges(host.available_cores())}" if described["kind"] == "cpu" else ""
    inputs = ", ".join(map(str, signature.inputs))
    shortage = (
        [f"         fewer trials than kernels: --trials {len(tasks)} measures each once"]
        if trials is not None and 0 < trials < len(tasks)
        else []
    )
    load = host.busy_load(threads) if described["kind"] == "cpu" and trials != 0 else None
    busy = (
        []
        if load is None
        else [f"         load {load:.1f} now: trials wait for idle cores, as long as --patience says"]
    )
    lengths = () if optimized.lengths is None else optimized.lengths.representative
    opened = optimized.model.open
    work_at = f" at {opened.counted_at}" if opened is not None and not lengths else ""
    at = [f"{'/'.join(map(str, one.sizes.values()))} ({one.weight:.0%})" for one in lengths]
    return [
        f"model    {optimized.model.name}({inputs})",
        *([f"lengths  {', '.join(at)}"] if at else []),
        f"target   {described['kind']} {' '.join(filter(None, device))}, "
        f"{threads} thread{'s' * (threads > 1)}{cores}",
        f"kernels  {len(tasks)} distinct in {calls} calls, {operations(work)}{work_at}",
        "spaces   "
        + ", ".join(f"{name} {count}" for name, count in spaces.most_common(4))
        + (", ..." if len(spaces) > 4 else ""),
        f"records  {origins['record']} of {len(tasks)} kernels have one; new ones go to {store.path.parent}",
        f"plan     {budget}; less where records exist",
        *shortage,
        *busy,
    ]


def _ranges(cores: Sequence[int]) -> str:
    """``0-3,8`` for (0, 1, 2, 3, 8)."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def print_tasks(tasks: Sequence[dict[str, Any]]) -> None:
    """Table of the kernels that a search would tune."""
    columns = [
        Column("kernel", text=True),
        Column("calls", rank=1),
        Column("MFLOP"),
        Column("MB", rank=2),
        Column("space", text=True, rank=3),
    ]
    rows = [
        (one["name"], one["calls"], figure(one["flops"] / 1e6), figure(one["nbytes"] / 1e6), one["space"])
        for one in tasks
    ]
    printer = console()
    printer.print(table("tasks", columns, rows, printer.width))


def next_commands(library: Path, language: Mapping[str, Any] | None = None) -> str:
    """Commands that one wants to type once a library has been written.

    Parameters
    ----------
    language : facts of a language model, or of a model that embeds texts, from the library's manifest.
    """
    path = str(library.parent if language and library.name == "model.so" else library)
    named = shlex.quote(f"./{path}" if path.startswith("-") else path)  # no option
    if not language:
        title = "next: how fast is it?  where does the time go?"
        arguments = [f"bench {named}", f"profile {named}"]
    elif EMBEDDING in language:
        title, arguments = "next: serve it", [f"serve_text {named}"]
    elif (source := language.get("source")) is not None:
        given = "--audio FILE.wav" if source.get("mels") else "--source TEXT"
        title, arguments = "next: use it", [f"generate {named} {given}"]
    else:
        title = "next: use it, serve it; how fast is it?"
        arguments = [f"generate {named} --prompt TEXT", f"serve_text {named}", f"bench {named} --decode"]
    return as_typed("\n".join([title, *(f"  python -m hetero_tvm.{line}" for line in arguments)]))
