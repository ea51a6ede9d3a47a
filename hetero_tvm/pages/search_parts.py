"""A search as parts of an HTML page: the curve, the kernels, how it went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hetero_tvm.host.terminal import milliseconds, number_of, percent, record_cell
from hetero_tvm.pages import charts
from hetero_tvm.pages.page import Html, name, section, share_bar, table, text

_CAPTION = (
    "Roofs as measured on this machine while it tuned. A kernel over the lower slope has operands in caches. "
    "One over the flat roof is a convolution that needs fewer products than are counted (Winograd), or the "
    "roof was measured while others used the cores. "
    "The larger a dot, the more of the time it takes."
)


def sections(report: Mapping[str, Any]) -> list[Html]:
    """Roofline, kernels and course of a search (``TuneReport.to_dict``)."""
    rows = kernel_rows(report)
    ways = report.get("implementations") or []
    return [
        *([section("Implementations", implementation_table(ways))] if ways else []),
        section("Roofline", *roofline(rows, report)),
        section("Kernels", kernel_table(rows)),
        section("Search", *course(report)),
    ]


def kernel_rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The kernels of a search with their share of the time, longest first."""
    tasks = report["tasks"]
    total = sum(task["calls"] * (task["tuned_seconds"] or 0.0) for task in tasks)
    rows = []
    for task in tasks:
        seconds = task["tuned_seconds"]
        share = task["calls"] * seconds / total if seconds and total else None
        rows.append({**task, "share": share, "nodes": task.get("nodes", ())})
    return sorted(rows, key=lambda row: -(row["share"] or 0.0))


def roofline(rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> list[Any]:
    """The drawing and its caption; empty without measured roofs or times."""
    if not report.get("peak_gflops") or not report.get("bandwidth_gbs"):
        return []
    dots = [
        charts.Dot(row["name"], row["flops"] / row["nbytes"], row["gflops"], row["share"] or 0.0)
        for row in rows
        if row["gflops"] and row["nbytes"]
    ]
    return (
        [
            charts.roofline(
                dots,
                report["peak_gflops"],
                report["bandwidth_gbs"],
                report.get("other_peaks", {}),
                report.get("cache_gbs"),
            ),
            _CAPTION,
        ]
        if dots
        else []
    )


def kernel_table(rows: Sequence[Mapping[str, Any]]) -> Html:
    """Kernels with times before and after, speed, record, and the nodes that they stand for."""
    columns = ("kernel", "calls", "share", "default ms", "tuned ms", "GFLOP/s", "% of roof", "record", "note")
    cells = []
    for row in rows:
        nodes = list(row["nodes"])
        more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
        lines = filter(None, [row["note"], f"{nodes[0]}{more}" if nodes else ""])
        note = Html("<br>".join(map(name, lines)))
        cells.append(
            (
                row["name"],
                row["calls"],
                share_bar(row["share"]),
                _time(row["default_seconds"]),
                _time(row["tuned_seconds"]),
                f"{row['gflops']:.1f}" if row["gflops"] else "",
                percent(row["roofline"]),
                record_cell(row["origin"]),
                note,
            )
        )
    told = [at for at, _ in enumerate(columns) if not cells or any(row[at] != "" for row in cells)]
    numbers = [place for place, at in enumerate(told) if 1 <= at <= 6]
    return table([columns[at] for at in told], [[row[at] for at in told] for row in cells], numbers)


def implementation_table(rows: Sequence[Mapping[str, Any]]) -> Html:
    """Implementations of one operator with the times of a call, and which of them was chosen."""
    columns = ("implementation", "default ms", "tuned ms", "trials", "note")
    cells = [
        (
            row["name"],
            _time(row["default_seconds"]),
            _time(row["tuned_seconds"]),
            row["trials"],
            "; ".join(filter(None, ["chosen" if row["chosen"] else "", row["note"]])),
        )
        for row in rows
    ]
    return table(columns, cells, (1, 2, 3))


def course(report: Mapping[str, Any]) -> list[Any]:
    """The curve of the search and sentences on how it went."""
    points = [(elapsed, 1e3 * seconds) for elapsed, _, seconds in report["curve"]]
    spent = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in report["spent"].items())
    lines: list[Any] = [
        charts.curve(points, "seconds", "all kernels, ms") if len({best for _, best in points}) > 1 else "",
        f"{number_of(report['trials'], 'trial')} in {report['elapsed']:.1f} s, {report['reused']} taken from "
        f"records; stopped by: {report['stopped']}.",
        f"Processes spent: {spent}." if spent else "",
    ]
    if report["failures"]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report["failures"].items())
        lines.append(f"Failed candidates: {kinds}.")
    return [*lines, *report["notes"], *map(warning, report["warnings"])]


def warning(words: str) -> Html:
    """A sentence that stands out."""
    return Html(f'<p class="warn">{text(words)}</p>')


def _time(seconds: float | None) -> str:
    return "" if seconds is None else milliseconds(1e3 * seconds)
