"""``python -m hetero_tvm.bench MODEL|LIB``: how fast a library is, alone or beside other runtimes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_tvm import host
from hetero_tvm.benchmarking import alone, baseline
from hetero_tvm.benchmarking.compare import Options, Result, compare
from hetero_tvm.benchmarking.decode import measure_decoding
from hetero_tvm.benchmarking.runtimes import OURS, PEERS, RUNTIMES, version
from hetero_tvm.cli import bench_report
from hetero_tvm.cli import common as cli_common
from hetero_tvm.cli.library_report import library_of
from hetero_tvm.cli.parsing import EXITS
from hetero_tvm.cli.steps import warn_when_busy
from hetero_tvm.errors import HeteroTVMError, UsageError
from hetero_tvm.generation.model import load_language_model
from hetero_tvm.host.install import pip_command
from hetero_tvm.host.scratch import temporary_folder
from hetero_tvm.runtime import read_manifest

if TYPE_CHECKING:
    from hetero_tvm.benchmarking.subject import Subject
    from hetero_tvm.frontend.signature import ImportedModel

_ROUNDS = 10
_SLOWER = 3
_DEFAULT_PEER = "onnxruntime"
_EXAMPLES = {
    "out/model.so": "latency, throughput, load time and memory of a library",
    "out/model.so --streams 1,2,4 --json": "throughput of several callers at once",
    "out/model.so --baseline old.json --tolerance 5": "exit status 3 where it got more than 5% slower",
    "out/model.so --model bert.onnx --vs onnxruntime,openvino": "beside other runtimes",
    "bert.onnx --batch 1 --sequence 128 --vs torch.compile": "build with the records there are, and compare",
}


def main(argv: Sequence[str] | None = None) -> int:
    return cli_common.run(_run, make_parser(), argv)


def make_parser() -> argparse.ArgumentParser:
    text = (
        "Measure a library alone: latency, throughput, load time, memory. Or compare latencies and outputs "
        "with other runtimes: one process each, asked in turn, same threads and cores. MODEL may be an "
        "exported .so; --model names what it was built from."
    )
    exits = {**EXITS, _SLOWER: "slower than the --baseline"}
    parser = cli_common.parser("bench", text, _EXAMPLES, dict(sorted(exits.items())), out="out/bench")
    parser.add_argument("--model", dest="source", metavar="FILE", help="the model of an exported .so")
    parser.add_argument(
        "--vs",
        metavar="NAME[,NAME]",
        help=f"of {','.join(PEERS)} (default: {_DEFAULT_PEER} where a model is named, else none)",
    )
    parser.add_argument(
        "--threads", type=cli_common.positive, metavar="N", help="default: one per available core"
    )
    rounds = "turns of each runtime (10; 3 where a device is simulated, whose cycles never vary)"
    parser.add_argument("--rounds", type=cli_common.positive, metavar="R", help=rounds)
    calls = "timed calls per turn (0.3)"
    parser.add_argument("--seconds", type=cli_common.seconds, default=0.3, metavar="S", help=calls)
    parser.add_argument("--decode", action="store_true", help="MODEL is a language model that was built")
    prompts = "with --decode: prompts to time as well, for example 128,512"
    parser.add_argument("--prompts", type=_lengths, default=[], metavar="N[,N]", help=prompts)
    parser.add_argument(
        "--streams",
        type=_streams,
        metavar="N[,N]",
        help="callers at once whose throughput is measured (default: one per thread; 0: none)",
    )
    parser.add_argument(
        "--baseline", type=Path, metavar="OLD.json", help="what an earlier bench --json printed"
    )
    parser.add_argument(
        "--tolerance",
        type=cli_common.percent,
        default=5.0,
        metavar="PERCENT",
        help="by which times may rise (default: 5)",
    )
    return parser


def _lengths(text: str) -> list[int]:
    """``128,512`` -> [128, 512]; an argparse type."""
    return [cli_common.positive(part) for part in text.split(",")]


def _decode(options: argparse.Namespace) -> int:
    """Speed of a language model, as a share of the bandwidth that is measured beside it."""
    model = load_language_model(options.model, threads=options.threads)
    if model.sources is not None:
        raise UsageError(f"a {model.facts.architecture} model needs a source: --decode measures none")
    measured = measure_decoding(model, rounds=options.rounds or 5, prompts=options.prompts)
    cli_common.say(options, str(measured))
    if options.json:
        cli_common.print_json({"model": options.model, **measured.to_dict()})
    return 0


def _streams(text: str) -> tuple[int, ...]:
    """``1,2,4`` -> (1, 2, 4); an argparse type."""
    counts = tuple(cli_common.count(part) for part in text.split(","))
    return tuple(dict.fromkeys(count for count in counts if count))


def _run(options: argparse.Namespace) -> int:
    if options.decode:
        return _decode(options)
    cores = _cores(options.threads)
    if options.seconds <= 0:
        raise UsageError(f"--seconds must be positive, got {options.seconds}")
    before = None if options.baseline is None else baseline.read_baseline(options.baseline)
    library = library_of(options.model)
    names, absent = _peers(options, library)
    if library is not None and options.source is None and options.vs is not None:
        raise UsageError(
            "the other runtimes need the model of this library", hint="add --model FILE|zoo:NAME"
        )
    if library is None and options.source is not None:
        raise UsageError("--model is for an exported .so", hint=f"leave out --model {options.source}")
    with temporary_folder("hetero_tvm-bench-") as folder:
        subject = _subject(options, library, folder)
        warn_when_busy(len(cores))
        if names:
            settings = Options(cores, options.rounds, options.seconds)
            document = _compared(subject, names, absent, settings, options)
        else:
            document = _alone(subject, options)
    status = 0 if before is None else _judge(before, document, options)
    if options.json:
        cli_common.print_json(document)
    return status


def _peers(options: argparse.Namespace, library: Path | None) -> tuple[list[str], list[str]]:
    """Runtimes to compare with, and those that are asked for and not installed."""
    from hetero_tvm.benchmarking.subject import choose_runtimes

    if options.vs is None and library is not None and options.source is None:
        return [], []
    asked = [name.strip() for name in (options.vs or _DEFAULT_PEER).split(",") if name.strip()]
    names, absent = choose_runtimes(asked, PEERS, lambda name: RUNTIMES[name].installed)
    if absent and not names:
        command = pip_command(*dict.fromkeys(RUNTIMES[name].install for name in absent))
        if options.vs is not None:
            raise UsageError(f"not installed: {', '.join(absent)}", hint=command)
        print(f"{absent[0]} is not installed: measured alone; {command}", file=sys.stderr)
    return names, absent


def _compared(
    subject: Subject, names: list[str], absent: list[str], settings: Options, options: argparse.Namespace
) -> dict[str, Any]:
    """Our library beside other runtimes; prints the table, gives the document."""

    def progress(text: str) -> None:
        if not options.quiet:
            print(text, file=sys.stderr, flush=True)

    results = compare([OURS, *names], subject.inputs, subject.files, settings, progress)
    if results[0].status != "ok":
        raise HeteroTVMError(f"our own library failed: {results[0].reason}")
    settings = replace(settings, rounds=len(results[0].turns))
    results += [Result(name, "not installed", pip_command(RUNTIMES[name].install)) for name in absent]
    if not options.json and not options.quiet:
        bench_report.print_comparison(subject.name, settings, results)
        if results[0].device_cost is not None:
            print(bench_report.device_lines(float(results[0].compared[0]), results[0].device_cost))
    return {
        **_facts(subject, len(settings.cores)),
        "cores": list(settings.cores),
        "rounds": settings.rounds,
        "seconds": settings.seconds,
        "runtimes": [result.to_json() for result in results],
    }


def _alone(subject: Subject, options: argparse.Namespace) -> dict[str, Any]:
    """Our library alone; prints the figures, gives the document."""
    library = subject.files["library"]
    assert library is not None
    on_cpu = read_manifest(library).target.kind == "cpu"
    streams = options.streams
    if streams is None:
        count = options.threads or len(host.available_cores())
        streams = (count,) if on_cpu and count > 1 else ()
    seconds = options.seconds * (options.rounds or _ROUNDS)
    cli_common.say(options, f"measuring for about {seconds * (1.1 + len(streams)):.0f} s ...")
    measured = alone.measure(library, subject.inputs, alone.Settings(seconds, options.threads, streams))
    figures, cost = measured.figures, measured.device_cost
    if not options.json and not options.quiet:
        print("\n".join(bench_report.alone_lines(subject.name, figures)))
        if cost is not None:
            print(cost.summary)
    latency = figures.pop("latency")
    row = {"name": OURS, "status": "ok", "version": version(OURS), **latency}
    if cost is not None:
        row[cost.kind] = {**cost.counters, f"{cost.kind}_ms": 1e3 * cost.seconds}
    return {**_facts(subject, figures["threads"]), "seconds": seconds, "runtimes": [row], **figures}


def _facts(subject: Subject, threads: int) -> dict[str, Any]:
    return {
        "model": subject.name,
        "library": str(subject.files["library"]),
        "machine": host.detect().to_json(),
        "load": os.getloadavg()[0],
        "threads": threads,
    }


def _judge(before: dict[str, Any], document: dict[str, Any], options: argparse.Namespace) -> int:
    """Compare with the baseline; gives the exit status."""
    changes, warnings = baseline.compare_documents(before, document, options.tolerance / 100)
    for text in warnings:
        print(f"warning: {text}", file=sys.stderr)
    for change in [] if options.quiet else changes:
        print(change, file=sys.stderr if options.json else sys.stdout)
    return _SLOWER if any(change.slower for change in changes) else 0


def _cores(threads: int | None) -> tuple[int, ...]:
    available = host.available_cores()
    if threads is not None and threads > len(available):
        raise UsageError(
            f"--threads {threads}, but {len(available)} cores are available",
            hint=f"use --threads {len(available)} or fewer: a shared core measures nothing",
        )
    return available[:threads]


def _subject(options: argparse.Namespace, library: Path | None, folder: Path) -> Subject:
    from hetero_tvm.benchmarking.subject import Sizes, from_library

    source = options.model if library is None else options.source
    model = None
    if source is not None:
        import hetero_tvm

        model = hetero_tvm.import_model(
            source,
            shapes=dict(options.shape),
            batch=options.batch,
            sequence=options.sequence,
            values=dict(options.value),
            trust=options.trust,
        )
    if library is None:
        library = _library_for(model, options)
    sizes = Sizes(dict(options.shape), options.batch, options.sequence, options.inputs)
    return from_library(library, model, source, folder, sizes)


def _library_for(model: ImportedModel, options: argparse.Namespace) -> Path:
    """Build an imported model with the records there are, and export it to ``--out``."""
    import hetero_tvm

    optimized = cli_common.load_optimized(options, model)
    cli_common.tell_missing_logs(options)
    built = hetero_tvm.build_model(optimized, logs=options.logs, use_shipped=not options.no_shipped_records)
    return Path(cli_common.export(built, options)["library"]).absolute()


if __name__ == "__main__":
    sys.exit(main())
