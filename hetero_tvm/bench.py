"""``python -m hetero_tvm.bench MODEL|LIB``: compare with other runtimes, side by side."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hetero_tvm import host
from hetero_tvm.benchmarking.compare import Options, Result, compare
from hetero_tvm.benchmarking.runtimes import OURS, PEERS, RUNTIMES
from hetero_tvm.benchmarking.subject import Subject, choose_runtimes, from_library
from hetero_tvm.cli import common as cli_common
from hetero_tvm.errors import HeteroTVMError, UsageError
from hetero_tvm.frontend.signature import ImportedModel
from hetero_tvm.host.scratch import temporary_folder
from hetero_tvm.runtime import DeviceCost


def main(argv: Sequence[str] | None = None) -> int:
    return cli_common.run(_run, make_parser(), argv)


def make_parser() -> argparse.ArgumentParser:
    text = (
        "Compare latencies and outputs with other runtimes: one process each, asked in turn, same "
        "threads and cores. MODEL may also be an exported .so; --model names what it was built from."
    )
    parser = cli_common.parser("bench", text)
    parser.add_argument("--model", dest="source", metavar="FILE", help="the model of an exported .so")
    parser.add_argument("--vs", metavar="NAMES", help=f"of {','.join(PEERS)} (default: onnxruntime)")
    parser.add_argument(
        "--threads", type=cli_common.positive, metavar="N", help="default: one per available core"
    )
    rounds = "turns of each runtime (10; 3 where a device is simulated, whose cycles never vary)"
    parser.add_argument("--rounds", type=cli_common.positive, metavar="R", help=rounds)
    parser.add_argument("--seconds", type=float, default=0.3, metavar="S", help="timed calls per turn (0.3)")
    return parser


def _run(options: argparse.Namespace) -> int:
    cores = _cores(options.threads)
    if options.seconds <= 0:
        raise UsageError(f"--seconds must be positive, got {options.seconds}")
    library = _as_library(options.model)
    if library is not None and options.source is None and options.vs is not None:
        raise UsageError(
            "the other runtimes need the model of this library", hint="add --model FILE|zoo:NAME"
        )
    if library is None and options.source is not None:
        raise UsageError("--model is for an exported .so", hint=f"leave out --model {options.source}")
    peers = [name.strip() for name in (options.vs or "onnxruntime").split(",") if name.strip()]
    names, absent = choose_runtimes(peers, PEERS, lambda name: RUNTIMES[name].installed)
    if absent and not names:
        packages = " ".join(dict.fromkeys(f"'{RUNTIMES[name].install}'" for name in absent))
        raise UsageError(f"not installed: {', '.join(absent)}", hint=f"pip install {packages}")
    with temporary_folder("hetero_tvm-bench-") as folder:
        subject = _subject(options, library, folder)
        settings = Options(cores, options.rounds, options.seconds)
        runtimes = [OURS, *(names if subject.files["model"] else [])]

        def progress(text: str) -> None:
            if not options.quiet:
                print(text, file=sys.stderr, flush=True)

        _warn_when_busy(len(cores))
        results = compare(runtimes, subject.inputs, subject.files, settings, progress)
    if results[0].status != "ok":
        raise HeteroTVMError(f"our own library failed: {results[0].reason}")
    settings = replace(settings, rounds=len(results[0].turns))
    results += [Result(name, "not installed", f"pip install '{RUNTIMES[name].install}'") for name in absent]
    if options.json:
        cli_common.print_json(_document(subject, settings, results))
    else:
        _print_table(subject, settings, results)
        if results[0].device_cost is not None:
            print(_device_lines(results[0], results[0].device_cost))
    return 0


def _device_lines(ours: Result, cost: DeviceCost) -> str:
    """Text on the time of a call on its device, in place of the wall time of a simulator."""
    latency = float(ours.compared[0])
    return (
        f"{cost.summary}\n"
        f"with {latency - 1e3 * cost.seconds:.3f} ms of kernels on the host: {latency:.3f} ms, which is what "
        "'ours / this' compares; the times of our row are the wall's"
        + (", for which the simulator computes the numbers" if cost.simulated else "")
    )


def _cores(threads: int | None) -> tuple[int, ...]:
    available = host.available_cores()
    if threads is not None and threads > len(available):
        raise UsageError(
            f"--threads {threads}, but {len(available)} cores are available",
            hint=f"use --threads {len(available)} or fewer: a shared core measures nothing",
        )
    return available[:threads]


def _as_library(text: str) -> Path | None:
    """Path of an exported library, when ``text`` is one or a folder with one."""
    path = Path(text)
    if path.suffix == ".so":
        return path.absolute()
    if path.is_dir():
        from hetero_tvm.runtime.opening import resolve

        return resolve(path)
    return None


def _subject(options: argparse.Namespace, library: Path | None, folder: Path) -> Subject:
    source = options.model if library is None else options.source
    model = None
    if source is not None:
        import hetero_tvm

        model = hetero_tvm.import_model(
            source,
            shapes=dict(options.shape),
            batch=options.batch,
            sequence=options.sequence,
            trust=options.trust,
        )
    if library is None:
        library = _library_for(model, options)
    return from_library(library, model, source, folder)


def _library_for(model: ImportedModel, options: argparse.Namespace) -> Path:
    """Build an imported model with the records there are, and export it to ``--out``."""
    import hetero_tvm

    optimized = cli_common.load_optimized(options, model)
    built = hetero_tvm.build_model(optimized, logs=options.logs, use_shipped=not options.no_shipped_records)
    return Path(cli_common.export(built, options)["library"]).absolute()


def _warn_when_busy(threads: int) -> None:
    load = os.getloadavg()[0]
    if load > 0.5 + 0.25 * threads:
        print(
            f"warning: the machine is busy (load {load:.1f}); times will be too long and uneven",
            file=sys.stderr,
        )


def _document(subject: Subject, settings: Options, results: list[Result]) -> dict[str, Any]:
    return {
        "model": subject.name,
        "library": str(subject.files["library"]),
        "machine": host.detect().to_json(),
        "threads": len(settings.cores),
        "cores": list(settings.cores),
        "rounds": settings.rounds,
        "seconds": settings.seconds,
        "runtimes": [result.to_json() for result in results],
    }


def _print_table(subject: Subject, settings: Options, results: list[Result]) -> None:
    from rich.console import Console
    from rich.table import Table

    count = len(settings.cores)
    threads = f"{count} thread{'s' * (count > 1)}"
    title = f"{subject.name}, {threads} on cores {list(settings.cores)}, {settings.rounds} rounds"
    table = Table(title=title, title_justify="left")
    table.add_column("runtime")
    for heading in ("median ms", "p10", "min", "spread", "ours / this", "max diff", "relative"):
        table.add_column(heading, justify="right")
    for result in results:
        row = result.to_json()
        if row["status"] != "ok":
            table.add_row(result.name, row["status"], *[""] * 6)
            continue
        times = [f"{row[key]:.3f}" for key in ("median_ms", "p10_ms", "min_ms")]
        differences = [f"{result.max_abs_difference:.1e}", f"{result.max_rel_difference:.1e}"]
        name = f"{result.name} {row['version']}"
        table.add_row(name, *times, f"{row['spread']:.0%}", f"{result.ratio:.3f}", *differences)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    for result in results:
        if result.status != "ok":
            console.print(f"{result.name}: {result.status}: {result.reason}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
