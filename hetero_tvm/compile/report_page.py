"""Report of a build and of the search before it, as one HTML page."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from hetero_tvm import host
from hetero_tvm.compile.optimize import OptimizedModel
from hetero_tvm.compile.truth import EndToEnd
from hetero_tvm.errors import BuildError
from hetero_tvm.host.files import write_whole
from hetero_tvm.host.tables import bytes_in_words
from hetero_tvm.host.terminal import milliseconds, operations
from hetero_tvm.memory.model_plan import MemoryPlan
from hetero_tvm.pages import charts, views
from hetero_tvm.pages import search_parts as search_page
from hetero_tvm.pages.page import Html, fragment, page, retype, section, table, tiles
from hetero_tvm.reference import Accuracy
from hetero_tvm.relax_passes.rewriting.rule import Report
from hetero_tvm.runtime.manifest import current_versions
from hetero_tvm.search.outcome import TaskReport, TuneReport


class Built(Protocol):
    """A built model, as far as its report needs it."""

    optimized: OptimizedModel
    memory: MemoryPlan
    accuracy: Accuracy | None

    @property
    def kernels(self) -> list[dict[str, Any]]:
        """Entries of the manifest."""
        ...


def report_html(
    built: Built,
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
    if search is None:
        parts = [section("Kernels", search_page.kernel_table(_rows(built)), _UNTUNED)]
    else:
        nodes = {task.name: list(task.calls[0]) for task in optimized.tasks}
        document = search.to_dict()
        document["tasks"] = [{**task, "nodes": nodes.get(task["name"], ())} for task in document["tasks"]]
        parts = search_page.sections(document)
    sections = [
        tiles(_headlines(built, search, end_to_end)),
        section("How to make it again", retype(command) if command else ""),
        *parts,
        section("Fusions", *fusion_parts(optimized.report)),
        section("Memory of one call", *memory_parts(built.memory)),
        section("Numbers", *_accuracy(built)),
        section("Machine", _machine(facts, search)),
    ]
    inputs = ", ".join(map(str, optimized.signature.inputs))
    if optimized.model.open is not None:
        inputs += f"; {', '.join(map(str, optimized.model.open.symbols))}"
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


def report_fragment(built: Built) -> str:
    """Kernels, memory and accuracy of a build, for a cell of a notebook."""
    return fragment(
        section(built.optimized.model.name, tiles(_headlines(built, None, None))),
        section("Kernels", search_page.kernel_table(_rows(built))),
        section("Memory of one call", *memory_parts(built.memory)),
        section("Numbers", *_accuracy(built)),
    )


def write_report(library: Path, markup: str) -> Path:
    """Write a page beside the library that it is of; gives its path.

    Raises
    ------
    BuildError : the folder cannot be written.
    """
    name = "report.html" if library.stem == "model" else f"{library.stem}.report.html"
    target = library.with_name(name)
    try:
        write_whole(target, markup)
    except OSError as error:
        raise BuildError(f"cannot write {target}: {error.strerror}", hint="name another --out") from error
    return target


_UNTUNED = "Built from the records there are, or from defaults; times are those of the records."


def _rows(built: Built) -> list[dict[str, Any]]:
    """Kernels of a build without a search, in the form of those of one."""
    tasks = []
    for row in built.kernels:
        seconds = row["seconds"]
        task = TaskReport(
            row["kernel"], row["calls"], row["flops"], row["bytes"], None, seconds, row["record"]
        )
        tasks.append({**task.to_dict(), "nodes": row["nodes"]})
    return search_page.kernel_rows({"tasks": tasks})


def _headlines(built: Built, search: TuneReport | None, end_to_end: EndToEnd | None) -> list[tuple[str, Any]]:
    kernels = built.kernels
    facts: list[tuple[str, Any]] = []
    if end_to_end is not None and end_to_end.kept == "tuned":
        facts.append(("a call", f"{milliseconds(1e3 * end_to_end.tuned_seconds)} ms"))
        facts.append(("faster than the default", f"{1 / end_to_end.ratio:.2f} x"))
    elif end_to_end is not None:
        facts.append(("a call, default kept", f"{milliseconds(1e3 * end_to_end.default_seconds)} ms"))
    elif search is not None and (timed := [task for task in search.tasks if task.tuned_seconds]):
        every = len(timed) == len(search.tasks)
        which = "all kernels" if every else f"{len(timed)} timed of {len(search.tasks)} kernels"
        total = sum(task.uses * task.tuned_seconds for task in timed)
        facts.append((which, f"{milliseconds(1e3 * total)} ms"))
    facts.append(("kernels", f"{len(kernels)} in {sum(row['calls'] for row in kernels)} calls"))
    opened = built.optimized.model.open
    work = "work" if opened is None else f"work at {opened.counted_at}"
    facts.append((work, operations(sum(row["calls"] * row["flops"] for row in kernels))))
    facts.append(("arena", bytes_in_words(built.memory.peak)))
    if search is not None:
        facts.append(("trials", f"{search.trials} in {search.elapsed:.0f} s"))
    return facts


def fusion_parts(report: Report) -> list[Any]:
    """Fusions that fired, and those that nearly did, with the reason."""
    return views.fusion_parts(report.to_json())


def memory_parts(memory: MemoryPlan) -> list[Any]:
    """Figures of a plan and a drawing of each arena."""
    bound = memory.lower_bound
    gap = f"{memory.peak / bound - 1:.1%} above" if bound else "at"
    parts: list[Any] = [
        f"{memory.peak:,} bytes, {gap} the lower bound of {bound:,}; every tensor by itself would take "
        f"{memory.naive:,}; {len(memory.in_place)} calls work in place; results take {memory.outputs:,} more."
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


def _accuracy(built: Built) -> list[Any]:
    if built.accuracy is None:
        return [search_page.warning("Never compared with a reference.")]
    return ["Compared with a float64 reference:", *str(built.accuracy).splitlines()]


def _machine(facts: host.Host, search: TuneReport | None) -> Html:
    versions: Mapping[str, str] = current_versions()
    rows: list[tuple[str, Any]] = [
        ("CPU", f"{facts.model_name} ({facts.microarchitecture}), {facts.simd_bits}-bit vectors"),
        ("cores", len(facts.cores)),
        ("caches", f"L1 {facts.l1d >> 10} kB, L2 {facts.l2 >> 10} kB, L3 {facts.l3 >> 20} MB"),
        ("load when this was written", f"{os.getloadavg()[0]:.1f}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
    ]
    if search is not None:
        if search.peak_gflops:
            peaks = [f"{search.peak_gflops:.0f} GFLOP/s"]
            peaks += [f"{peak:.0f} in {kind}" for kind, peak in sorted(search.other_peaks.items())]
            rows.append(("measured peak", ", ".join(peaks)))
        if search.bandwidth_gbs:
            rows.append(("measured bandwidth", f"{search.bandwidth_gbs:.1f} GB/s"))
        if search.cache_gbs:
            rows.append(("measured bandwidth of caches", f"{search.cache_gbs:.0f} GB/s"))
        if search.drift is not None:
            rows.append(("drift of the baseline from start to end", f"{search.drift:+.1%}"))
        rows.append(("trials that others disturbed", f"{search.disturbed} of {search.trials}"))
        rows.append(("seconds spent waiting for others", f"{search.waited:.1f}"))
    return table(("", ""), rows)
