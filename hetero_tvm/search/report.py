"""The table at the end of a tuning run."""

from __future__ import annotations

from typing import Any, TextIO

from hetero_tvm.search.outcome import TaskReport, TuneReport


def table(report: TuneReport) -> Any:
    """A rich table: kernel, calls, share of time, default -> tuned, % of roofline, record."""
    from rich.table import Table

    total = report.total_seconds("tuned_seconds") or 0.0
    result = Table(title="kernels", title_justify="left")
    result.add_column("kernel", overflow="fold")
    for column in ("calls", "share", "default ms", "tuned ms", "GFLOP/s", "% of roofline"):
        result.add_column(column, justify="right")
    result.add_column("record", overflow="fold")
    result.add_column("note", overflow="fold")
    rows = sorted(report.tasks, key=lambda task: -(task.calls * (task.tuned_seconds or 0.0)))
    for task in rows:
        share = task.calls * task.tuned_seconds / total if task.tuned_seconds and total else None
        result.add_row(
            task.name,
            str(task.calls),
            _percent(share),
            _milliseconds(task.default_seconds),
            _milliseconds(task.tuned_seconds),
            "" if task.gflops is None else f"{task.gflops:.1f}",
            _percent(task.roofline),
            task.origin,
            _note(task),
        )
    return result


def summary(report: TuneReport) -> list[str]:
    """Sentences under the table."""
    lines = []
    default, tuned = report.total_seconds("default_seconds"), report.total_seconds("tuned_seconds")
    if default and tuned:
        lines.append(
            f"all kernels together: {_milliseconds(default)} ms -> {_milliseconds(tuned)} ms "
            f"({default / tuned:.2f} x)"
        )
    speed = f", {report.trials_per_second:.1f} per second" if report.trials else ""
    lines.append(
        f"{report.trials} trials in {report.elapsed:.1f} s{speed}; {report.reused} taken from records; "
        f"stopped by: {report.stopped}"
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
    peaks += [f"memory {report.bandwidth_gbs:.0f} GB/s"] if report.bandwidth_gbs else []
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
    return sum(task.calls * task.tuned_seconds for task in near) / total


def print_report(report: TuneReport, stream: TextIO) -> None:
    from rich.console import Console

    # A file or pipe has no width of its own; the table must not be folded to 80 columns there.
    console = Console(file=stream, width=None if stream.isatty() else 160, soft_wrap=False)
    console.print(table(report))
    for line in summary(report):
        console.print(line, markup=False, highlight=False)


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    milliseconds = seconds * 1e3
    return f"{milliseconds:.3f}" if milliseconds >= 0.1 or milliseconds == 0 else f"{milliseconds:.3g}"


def _percent(fraction: float | None) -> str:
    if fraction is not None and fraction > 1.02:  # operands in cache are not bound by main memory
        return ">100%"
    return "" if fraction is None else f"{fraction:.0%}"


def _note(task: TaskReport) -> str:
    failed = ", ".join(f"{count} {kind}" for kind, count in task.failures.items())
    return "; ".join(filter(None, [task.note, failed]))
