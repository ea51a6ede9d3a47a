"""The table at the end of a tuning run."""

from __future__ import annotations

from typing import TextIO

from hetero_tvm.host import terminal
from hetero_tvm.host.terminal import Column, milliseconds, number_of, percent, record_cell
from hetero_tvm.search.outcome import TaskReport, TuneReport

_MOST_ROWS = 40
"""Kernels that the table of a terminal shows; the page of the report shows all."""


def table(report: TuneReport, width: int) -> terminal.Table:
    """A table of at most ``width`` columns: kernel, calls, share, default and tuned, % of roofline."""
    total = sum(task.uses * (task.tuned_seconds or 0.0) for task in report.tasks)
    columns = [
        Column("kernel", text=True),
        Column("calls", rank=1),
        Column("share"),
        Column("default ms"),
        Column("tuned ms"),
        Column("GFLOP/s", rank=2),
        Column("% of roofline", rank=3),
        Column("record", text=True, rank=4),
        Column("note", text=True, rank=5),
    ]
    tasks = sorted(report.tasks, key=lambda task: -(task.uses * (task.tuned_seconds or 0.0)))
    more = len(tasks) - _MOST_ROWS
    caption = f"and {more} more kernels, with less time or none (--json has all)" if more > 0 else ""
    cells = []
    for task in tasks[:_MOST_ROWS]:
        share = task.uses * task.tuned_seconds / total if task.tuned_seconds and total else None
        cells.append(
            (
                task.name,
                task.calls,
                percent(share),
                _time(task.default_seconds),
                _time(task.tuned_seconds),
                f"{task.gflops:.1f}" if task.gflops else "",  # what only moves data has none
                percent(task.roofline),
                record_cell(task.origin),
                _note(task),
            )
        )
    return terminal.table("kernels", columns, cells, width, caption)


def implementation_table(report: TuneReport, width: int) -> terminal.Table:
    """A table of at most ``width`` columns: the implementations of one operator, and which was chosen."""
    columns = [
        Column("implementation", text=True),
        Column("default ms"),
        Column("tuned ms"),
        Column("trials", rank=1),
        Column("note", text=True),
    ]
    cells = [
        (
            one.name,
            _time(one.default_seconds),
            _time(one.tuned_seconds),
            one.trials,
            "; ".join(filter(None, ["chosen" if one.chosen else "", one.note])),
        )
        for one in report.implementations
    ]
    return terminal.table("implementations", columns, cells, width)


def summary(report: TuneReport) -> list[str]:
    """Sentences under the table."""
    lines = []
    default, tuned = report.total_seconds("default_seconds"), report.total_seconds("tuned_seconds")
    if default and tuned:
        timed = sum(task.compared and task.tuned_seconds is not None for task in report.tasks)
        which = (
            "all kernels together"
            if timed == len(report.tasks)
            else f"the {timed} of {len(report.tasks)} kernels that were timed beside their defaults"
        )
        lines.append(f"{which}: {_time(default)} ms -> {_time(tuned)} ms ({default / tuned:.2f} x)")
    speed = ""
    if report.trials:  # of slow ones no "0.0"
        rate, unit = report.trials_per_second, "second"
        if rate < 1:
            rate, unit = 60 * rate, "minute"
        speed = f", {rate:.1f} per {unit}"
    lines.append(
        f"{number_of(report.trials, 'trial')} in {report.elapsed:.1f} s{speed}; {report.reused} taken from "
        f"records; stopped by: {report.stopped}"
    )
    if (share := _share_at_roofline(report)) is not None and share >= 0.5:
        lines.append(
            f"{share:.0%} of the time is in kernels within 3% of the machine's peak: "
            "more minutes would gain little"
        )
    if report.failures:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.failures.most_common())
        lines.append(f"failed candidates: {kinds}")
    peaks = [f"peak {report.peak_gflops:.0f} GFLOP/s"] if report.peak_gflops else []
    peaks += [f"{peak:.0f} in {kind}" for kind, peak in sorted(report.other_peaks.items())]
    peaks += [f"memory {report.bandwidth_gbs:.0f} GB/s"] if report.bandwidth_gbs else []
    peaks += [f"caches {report.cache_gbs:.0f} GB/s"] if report.cache_gbs else []
    if peaks and report.drift is not None:
        peaks.append(f"drift {report.drift:+.1%}")
    if peaks:
        lines.append(", ".join(peaks))
    lines += report.notes
    lines += [f"warning: {text}" for text in report.warnings]
    lines.append(f"records: {report.logs}")
    return lines


def _share_at_roofline(report: TuneReport) -> float | None:
    """Part of the kernels' time that no search can shorten; None without times."""
    total = report.total_seconds("tuned_seconds")
    if not total:
        return None
    near = [task for task in report.tasks if task.note.endswith("of the roofline") and task.tuned_seconds]
    return sum(task.uses * task.tuned_seconds for task in near) / total


def print_report(report: TuneReport, stream: TextIO) -> None:
    """Print the table and the sentences under it; commands, which somebody copies, are not folded."""
    console = terminal.console(stream)
    if report.implementations:
        console.print(implementation_table(report, console.width))
    console.print(table(report, console.width))
    for line in "\n".join(summary(report)).split("\n"):
        console.print(line, whole=line.startswith("  "))


def _time(seconds: float | None) -> str:
    """Seconds as milliseconds; empty where nothing was measured."""
    return "" if seconds is None else milliseconds(1e3 * seconds)


def _note(task: TaskReport) -> str:
    failed = ", ".join(f"{count} {kind}" for kind, count in task.failures.items())
    return "; ".join(filter(None, [task.note, failed]))
