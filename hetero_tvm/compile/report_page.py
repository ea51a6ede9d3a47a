"""Report of a build and of the search before it, as one HTML page."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hetero_tvm import host
from hetero_tvm.compile.build import BuiltModel
from hetero_tvm.compile.truth import EndToEnd
from hetero_tvm.errors import BuildError
from hetero_tvm.memory.model_plan import MemoryPlan
from hetero_tvm.pages import charts
from hetero_tvm.pages.page import Html, page, section, share_bar, table, tiles
from hetero_tvm.relax_passes.rewriting.rule import Report
from hetero_tvm.runtime.manifest import current_versions
from hetero_tvm.runtime.profile_report import milliseconds, percent
from hetero_tvm.search.outcome import TuneReport

_LONGEST_NAMES = 3


def report_html(
    built: BuiltModel,
    search: TuneReport | None = None,
    end_to_end: EndToEnd | None = None,
    command: str = "",
) -> str:
    """The page.

    Parameters
    ----------
    search : how the kernels were tuned; None: the model was built from records.
    end_to_end : times of the whole model, default and tuned in turn.
    command : what made the library, to be typed again.
    """
    optimized = built.optimized
    described = optimized.target.describe()
    target = " ".join(filter(None, [described["kind"], described.get("device"), described.get("cpu")]))
    facts = host.detect()
    rows = _kernel_rows(built, search)
    sections = [
        tiles(_headlines(built, search, end_to_end)),
        section("How to make it again", Html(f"<pre>{page_text(command)}</pre>") if command else ""),
        section("Roofline", *_roofline(rows, search)),
        section("Kernels", _kernel_table(rows)),
        section("Search", *_search(search)),
        section("Fusions", *fusion_parts(optimized.report)),
        section("Memory of one call", *memory_parts(built.memory)),
        section("Numbers", *_accuracy(built)),
        section("Machine", _machine(facts, search)),
    ]
    inputs = ", ".join(map(str, optimized.model.signature.inputs))
    data = {
        "model": optimized.model.name,
        "target": described,
        "kernels": built.kernels,
        "search": None if search is None else search.to_dict(),
        "end_to_end": None if end_to_end is None else asdict(end_to_end),
        "fusions": optimized.report.to_json(),
        "machine": facts.to_json(),
        "versions": current_versions(),
        "command": command,
    }
    return page(optimized.model.name, f"for {target}: {inputs}", sections, data)


def write_report(path: Path, text: str) -> Path:
    """Write a page beside ``path``, the library that it is of.

    Raises
    ------
    BuildError : the folder cannot be written.
    """
    name = "report.html" if path.stem == "model" else f"{path.stem}.report.html"
    target = path.with_name(name)
    try:
        target.write_text(text)
    except OSError as error:
        raise BuildError(f"cannot write {target}: {error}", hint="name another --out") from error
    return target


def page_text(value: str) -> str:
    """Text for the inside of an element."""
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _headlines(
    built: BuiltModel, search: TuneReport | None, end_to_end: EndToEnd | None
) -> list[tuple[str, Any]]:
    kernels = built.kernels
    facts: list[tuple[str, Any]] = []
    if end_to_end is not None:
        facts.append(("a call, tuned", f"{milliseconds(1e3 * end_to_end.tuned_seconds)} ms"))
        facts.append(("default / tuned", f"{1 / end_to_end.ratio:.2f} x"))
    elif search is not None and (total := search.total_seconds("tuned_seconds")):
        facts.append(("all kernels", f"{milliseconds(1e3 * total)} ms"))
    facts.append(("kernels", f"{len(kernels)} in {sum(row['calls'] for row in kernels)} calls"))
    facts.append(("work", f"{sum(row['calls'] * row['flops'] for row in kernels) / 1e9:.3g} GFLOP"))
    facts.append(("arena", f"{built.memory.peak / 1e6:.3g} MB"))
    if search is not None:
        facts.append(("trials", f"{search.trials} in {search.elapsed:.0f} s"))
    return facts


def _kernel_rows(built: BuiltModel, search: TuneReport | None) -> list[dict[str, Any]]:
    """Kernels with times, where they are known, longest first."""
    tuned = {} if search is None else {task.name: task for task in search.tasks}
    rows = []
    for kernel in built.kernels:
        task = tuned.get(kernel["kernel"])
        seconds = task.tuned_seconds if task is not None else kernel["seconds"]
        rows.append({**kernel, "task": task, "now": seconds})
    total = sum(row["calls"] * row["now"] for row in rows if row["now"])
    for row in rows:
        row["share"] = row["calls"] * row["now"] / total if row["now"] and total else None
    return sorted(rows, key=lambda row: -(row["share"] or 0.0))


def _roofline(rows: Sequence[Mapping[str, Any]], search: TuneReport | None) -> list[Any]:
    if search is None or not search.peak_gflops or not search.bandwidth_gbs:
        return []
    dots = [
        charts.Dot(
            row["kernel"], row["flops"] / row["bytes"], row["flops"] / row["now"] / 1e9, row["share"] or 0.0
        )
        for row in rows
        if row["now"] and row["bytes"] and row["flops"]
    ]
    caption = (
        "Roofs as measured on this machine while it tuned. A kernel over the slope has its operands in "
        "caches. The larger a dot, the more of the time it takes."
    )
    return [charts.roofline(dots, search.peak_gflops, search.bandwidth_gbs), caption] if dots else []


def _kernel_table(rows: Sequence[Mapping[str, Any]]) -> Html:
    columns = (
        "kernel",
        "calls",
        "share",
        "default ms",
        "tuned ms",
        "GFLOP/s",
        "% of roof",
        "record",
        "nodes",
    )
    cells = []
    for row in rows:
        task, now = row["task"], row["now"]
        default = None if task is None else task.default_seconds
        names = row["nodes"][:_LONGEST_NAMES]
        more = len(row["nodes"]) - len(names)
        cells.append(
            (
                row["kernel"],
                row["calls"],
                share_bar(row["share"]),
                "" if default is None else milliseconds(1e3 * default),
                "" if not now else milliseconds(1e3 * now),
                f"{row['flops'] / now / 1e9:.1f}" if now else "",
                percent(None if task is None else task.roofline),
                row["record"],
                ", ".join(names) + (f" and {more} more" if more > 0 else ""),
            )
        )
    return table(columns, cells, numbers=(1, 3, 4, 5, 6))


def _search(search: TuneReport | None) -> list[Any]:
    if search is None:
        return ["Not tuned: the kernels are built from the records there are, or from defaults."]
    points = [(elapsed, 1e3 * seconds) for elapsed, _, seconds in search.curve]
    spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in search.spent.items())
    lines = [
        charts.curve(points, "seconds", "all kernels, ms"),
        f"{search.trials} trials in {search.elapsed:.1f} s, {search.reused} taken from records; "
        f"stopped by: {search.stopped}. {'Processes spent: ' + spent if spent else ''}",
    ]
    if search.failures:
        kinds = ", ".join(f"{count} {kind}" for kind, count in search.failures.most_common())
        lines.append(f"Failed candidates: {kinds}")
    return [*lines, *search.notes, *(Html(f'<p class="warn">{page_text(w)}</p>') for w in search.warnings)]


def fusion_parts(report: Report) -> list[Any]:
    """Fusions that fired, and those that nearly did, with the reason."""
    parts: list[Any] = []
    if report.fusions:
        parts.append(table(("fusion", "count"), sorted(report.fusions.items()), numbers=(1,)))
    for kind, (fused, every) in sorted(report.anchors.items()):
        parts.append(f"{kind}: {fused} of {every} inside fused operators")
    if report.misses:
        rows = [(miss["rule"], miss["node"], miss["reason"]) for miss in report.misses]
        parts += ["Not fused, and why:", table(("fusion", "node", "reason"), rows)]
    return parts


def memory_parts(memory: MemoryPlan) -> list[Any]:
    """Figures of a plan and a drawing of each arena."""
    gap = f"{memory.peak / memory.lower_bound - 1:.1%} above" if memory.lower_bound else "at"
    parts: list[Any] = [
        f"{memory.peak:,} bytes, {gap} the lower bound of {memory.lower_bound:,}; every tensor by itself "
        f"would take {memory.naive:,}; {len(memory.in_place)} calls work in place; results take "
        f"{memory.outputs:,} more."
    ]
    for arena in memory.arenas:
        names = {tensor.buffer: tensor.name for tensor in arena.tensors}
        boxes = [
            charts.Box(names.get(b.id, b.id), b.lower, b.upper, arena.plan.offsets[b.id], b.size)
            for b in arena.problem.buffers
            if b.size and b.upper > b.lower
        ]
        parts.append(charts.arena(boxes, arena.plan.peak, arena.plan.lower_bound))
    return parts


def _accuracy(built: BuiltModel) -> list[Any]:
    if built.accuracy is None:
        return [Html('<p class="warn">Never compared with a reference.</p>')]
    return ["Compared with a float64 reference:", *str(built.accuracy).splitlines()]


def _machine(facts: host.Host, search: TuneReport | None) -> Html:
    rows: list[tuple[str, Any]] = [
        ("CPU", f"{facts.model_name} ({facts.microarchitecture}), {facts.simd_bits}-bit vectors"),
        ("cores", len(facts.cores)),
        ("caches", f"L1 {facts.l1d >> 10} kB, L2 {facts.l2 >> 10} kB, L3 {facts.l3 >> 20} MB"),
        ("load when this was written", f"{os.getloadavg()[0]:.1f}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in current_versions().items())),
    ]
    if search is not None:
        if search.peak_gflops:
            rows.append(("measured peak", f"{search.peak_gflops:.0f} GFLOP/s"))
        if search.bandwidth_gbs:
            rows.append(("measured bandwidth", f"{search.bandwidth_gbs:.1f} GB/s"))
        if search.drift is not None:
            rows.append(("drift of the baseline from start to end", f"{search.drift:+.1%}"))
        rows.append(("trials that others disturbed", f"{search.disturbed} of {search.trials}"))
        rows.append(("seconds spent waiting for others", f"{search.waited:.1f}"))
    return table(("", ""), rows)
