"""``python -m hetero_tvm.tune MODEL``: tune, check and export a model."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from hetero_tvm.cli import common as cli_common
from hetero_tvm.cli.steps import Steps
from hetero_tvm.host.native import find_compiler
from hetero_tvm.host.terminal import number_of, operations
from hetero_tvm.targets.registry import start_early

if TYPE_CHECKING:
    from hetero_tvm.api import OptimizedModel
    from hetero_tvm.compile.truth import EndToEnd


_EXAMPLES = {
    "zoo:minilm-l6 --out out": "tune a model of the zoo with 64 trials",
    "bert.onnx --shape input_ids=1x128 --shape attention_mask=1x128 --minutes 5": "five minutes for your own",
    "bert.onnx --batch 8 --sequence 128 --dry-run": "list the kernels and the time it would take",
    "bert.onnx --shape ids=1x8..256 --lengths 16:0.2,64:0.6,200:0.2": "one library for a range of lengths",
    "net.onnx --target npu:mobile": "for the reference NPU",
    "net.onnx --rpc TOKEN@10.0.0.5:9090": "measure on another machine",
}


def main(argv: Sequence[str] | None = None) -> int:
    return cli_common.run(_run, make_parser(), argv)


def make_parser() -> argparse.ArgumentParser:
    text = "Tune a model's kernels for this machine, check the result, export one .so."
    parser = cli_common.parser("tune", text, _EXAMPLES)
    cli_common.add_lengths(parser)
    parser.add_argument(
        "--trials",
        type=cli_common.count,
        metavar="N",
        help="candidates to measure in all; finished ones count (default: 64, or no limit with --minutes); "
        "for an NPU as many whole models after them",
    )
    parser.add_argument("--minutes", type=cli_common.minutes, metavar="M", help="search no longer than this")
    parser.add_argument(
        "--seed", type=cli_common.count, default=0, metavar="N", help="of all random choices (default: 0)"
    )
    parser.add_argument(
        "--rpc",
        metavar="HOST:PORT[:KEY]",
        help="measure on another machine: a server (python -m hetero_tvm.serve), or a tracker's device KEY",
    )
    parser.add_argument(
        "--patience",
        type=cli_common.seconds,
        metavar="S",
        help="seconds to wait in all for other processes to leave the cores (default: 60; 0: none)",
    )
    parser.add_argument("--fresh", action="store_true", help="forget earlier records of these kernels")
    parser.add_argument("--dry-run", action="store_true", help="only list the tasks and the expected time")
    return parser


def _run(options: argparse.Namespace) -> int:
    trials = 64 if options.trials is None and options.minutes is None else options.trials
    searches = trials != 0 and not options.dry_run
    if options.rpc is not None:
        _ask_remote(options)
    if not options.dry_run:
        find_compiler()
    if searches and options.rpc is None:
        start_early(options.target.partition(":")[0])
    steps = Steps(5 if searches else 4, options.quiet)
    with steps.step("import and optimize"):  # loading the compiler is part of it, seconds on a busy machine
        from hetero_tvm import api
        from hetero_tvm.cli import tune_report
        from hetero_tvm.compile.report_page import report_html, write_report
        from hetero_tvm.compile.representative import to_tune
        from hetero_tvm.search.progress import Progress
        from hetero_tvm.search.report import print_report

        if searches and options.rpc is None:
            cli_common.load_target(options.target, None).tuner().start_early()
        optimized = cli_common.load_optimized(options)
    if options.dry_run:
        return _dry_run(optimized, options, trials)
    plan = tune_report.plan_lines(
        optimized, trials, options.minutes, options.logs, not options.no_shipped_records
    )
    cli_common.say(options, "\n".join(plan))
    expected = tune_report.expected_seconds(len(to_tune(optimized).tasks), trials, options.minutes)
    with (
        steps.step("search", expected, silent=False) if searches else nullcontext(),
        Progress(quiet=options.quiet) as progress,
    ):
        tuned = api.tune_model(
            optimized,
            trials=trials,
            minutes=options.minutes,
            logs=options.logs,
            seed=options.seed,
            use_shipped=not options.no_shipped_records,
            rpc=options.rpc,
            fresh=options.fresh,
            patience=options.patience,
            on_event=progress,
        )
    report = tuned.report
    if not options.quiet:
        print_report(report, sys.stderr if options.json else sys.stdout)
    if report.interrupted:
        cli_common.say(options, "interrupted: writing the best so far (Ctrl-C again leaves it)")
    with steps.step("compile"):
        built = api.build_model(tuned, logs=options.logs, use_shipped=not options.no_shipped_records)
    with steps.step("compare with the default, whole models in turn"):
        found: EndToEnd | str = "nothing was searched"
        if options.rpc is not None:
            found = "it was measured on another machine"
        elif searches:
            built, found = api.settle(tuned, built)
    end_to_end = None if isinstance(found, str) else found
    cli_common.say(options, str(end_to_end or f"the whole model was not compared with its default: {found}"))
    with steps.step("export" if options.no_check else "check and export"):
        exported = cli_common.export(built, options)
    command = f"python -m hetero_tvm.tune {shlex.join(options.argv)}"
    page = report_html(built, report, end_to_end, command)
    exported["report"] = str(write_report(Path(exported["library"]), page))
    cli_common.say(options, f"wrote {exported['report']}")
    if options.json:
        search = {**report.to_dict(), "end_to_end": cli_common.plain(end_to_end)}
        cli_common.print_json({"model": options.model, "search": search, **exported})
    if report.interrupted:
        cli_common.say(options, "the same command goes on from here")
        return 130
    cli_common.say(options, tune_report.next_commands(Path(exported["library"])), whole=True)
    return 0


def _ask_remote(options: argparse.Namespace) -> None:
    """A kind alone (``--target cuda``) means the device at the other end."""
    from hetero_tvm.targets.registry import target_at

    options.target, device = target_at(options.target, options.rpc)
    if device is not None:
        cli_common.say(options, f"device at {options.rpc}: Found {device}: --target {options.target}")


def _dry_run(optimized: OptimizedModel, options: argparse.Namespace, trials: int | None) -> int:
    """List the tasks and the expected time."""
    from hetero_tvm.cli import tune_report
    from hetero_tvm.compile.representative import to_tune
    from hetero_tvm.records.record import space_identity

    tasks = [
        {
            "name": task.name,
            "calls": task.count,
            "flops": task.flops,
            "nbytes": task.nbytes,
            "space": space_identity(task)[0],
        }
        for task in to_tune(optimized).tasks
    ]
    seconds = tune_report.expected_seconds(len(tasks), trials, options.minutes)
    if options.json:
        document = {"model": options.model, "tasks": tasks, "trials": trials, "expected_seconds": seconds}
        cli_common.print_json(document)
        return 0
    tune_report.print_tasks(tasks)
    total = sum(task["calls"] * task["flops"] for task in tasks)
    print(f"{number_of(len(tasks), 'kernel')}, {operations(total)} per inference")
    budget = "trials without limit" if trials is None else number_of(trials, "trial")
    print(f"{budget}, about {seconds:.0f} s; less when records exist")
    return 0


if __name__ == "__main__":
    sys.exit(main())
