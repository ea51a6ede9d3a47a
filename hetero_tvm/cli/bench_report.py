"""Reports of ``bench``: a table of runtimes side by side, and the figures of one library alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hetero_tvm.benchmarking.compare import Options, Result
from hetero_tvm.host.tables import bytes_in_words
from hetero_tvm.host.terminal import Column, console, milliseconds, table
from hetero_tvm.runtime import DeviceCost


def print_comparison(name: str, settings: Options, results: Sequence[Result]) -> None:
    """Table of all runtimes; those that failed say why under it."""
    count = len(settings.cores)
    threads = f"{count} thread{'s' * (count > 1)}"
    title = f"{name}, {threads} on cores {list(settings.cores)}, {settings.rounds} rounds"
    ranks = {"median ms": 0, "p10": 5, "p99": 2, "min": 4, "spread": 1}
    ranks |= {"ours / this": 0, "max diff": 3, "relative": 0}
    columns = [Column("runtime", text=True), *(Column(name, rank=rank) for name, rank in ranks.items())]
    rows = []
    for result in results:
        row = result.to_json()
        if row["status"] != "ok":
            rows.append((result.name, row["status"], *[""] * 7))
            continue
        times = [milliseconds(row[key]) for key in ("median_ms", "p10_ms", "p99_ms", "min_ms")]
        differences = [f"{result.max_abs_difference:.1e}", f"{result.max_rel_difference:.1e}"]
        name = f"{result.name} {row['version']}"
        rows.append((name, *times, f"{row['spread']:.0%}", f"{result.ratio:.3f}", *differences))
    printer = console()
    printer.print(table(title, columns, rows, printer.width))
    for result in results:
        if result.status != "ok":
            printer.print(f"{result.name}: {result.status}: {result.reason}", whole=True)


def alone_lines(name: str, figures: Mapping[str, Any]) -> list[str]:
    """Figures of one library (``Measured.figures``) in lines of at most 80 columns."""
    latency, memory = figures["latency"], figures["memory"]
    threads = figures["threads"]
    lines = [
        f"{name}, {threads} thread{'s' * (threads > 1)}, alone in a process",
        f"  load         {milliseconds(figures['load_ms'])} ms",
        f"  first call   {milliseconds(figures['first_call_ms'])} ms",
        f"  latency of {latency['runs']:,} calls, one after another, ms:",
    ]
    names = {"median_ms": "p50", "p90_ms": "p90", "p99_ms": "p99", "max_ms": "worst", "min_ms": "best"}
    names["jitter_ms"] = "jitter"
    lines.append("    " + "".join(f"{heading:>11}" for heading in names.values()))
    lines.append("    " + "".join(f"{milliseconds(latency[key]):>11}" for key in names))
    lines.append(f"  throughput   {_rate(1e3 / latency['mean_ms'])} calls/s, one caller")
    for one in figures["streams"]:
        each, callers = one["threads_each"], "caller" if one["streams"] == 1 else "callers"
        lines.append(
            f"               {_rate(one['per_second'])} calls/s, {one['streams']} {callers} at once, "
            f"{each} thread{'s' * (each > 1)} each"
        )
    grown = memory["peak"] - memory["before"]
    lines.append(
        f"  memory       {bytes_in_words(grown)} beside Python and NumPy "
        f"({bytes_in_words(memory['before'])}); file {bytes_in_words(memory['file'])}"
    )
    return lines


def device_lines(latency_ms: float, cost: DeviceCost) -> str:
    """Text on the time of a call on its device, in place of the wall time of a simulator."""
    return (
        f"{cost.summary}\n"
        f"with {latency_ms - 1e3 * cost.seconds:.3f} ms of kernels on the host: {latency_ms:.3f} ms, which "
        "is what 'ours / this' compares; the times of our row are the wall's"
        + (", for which the simulator computes the numbers" if cost.simulated else "")
    )


def _rate(per_second: float) -> str:
    """Calls per second in four digits at least, never as a power of ten."""
    return f"{per_second:,.0f}" if per_second >= 1000 else f"{per_second:.4g}"
