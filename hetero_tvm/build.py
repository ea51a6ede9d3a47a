"""``python -m hetero_tvm.build MODEL``: build a model with the records there are, without searching."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetero_tvm.cli import common as cli_common

_EXAMPLES = {
    "zoo:gpt2-small --out out/gpt2": "a model of the zoo, with the records there are",
    "net.onnx --batch 1 --target cuda:sm_80,sm_90": "one library for two GPUs; needs none",
    "net.onnx --shape x=[1,3,224,224] --no-shipped-records --logs runs": "records of one folder only",
}


def main(argv: Sequence[str] | None = None) -> int:
    return cli_common.run(_run, make_parser(), argv)


def make_parser() -> argparse.ArgumentParser:
    text = "Build a model from existing records (or defaults), check it, export one .so."
    parser = cli_common.parser("build", text, _EXAMPLES)
    parser.add_argument(
        "--verify", action="store_true", help="check the memory plan independently of the planner"
    )
    return parser


def _run(options: argparse.Namespace) -> int:
    from hetero_tvm import api
    from hetero_tvm.compile.report_page import report_html, write_report

    optimized = cli_common.load_optimized(options)
    placement = optimized.target.placement(optimized.module, optimized.tasks)
    if placement is not None:
        cli_common.say(options, placement)
    built = api.build_model(optimized, logs=options.logs, use_shipped=not options.no_shipped_records)
    if not options.json and not options.quiet:
        _print_kernels(built.kernels)
    if options.verify:
        built.memory.verify()
        cli_common.say(options, f"memory plan verified: {built.memory.peak:,} bytes, nothing live overlaps")
    exported = cli_common.export(built, options)
    command = f"python -m hetero_tvm.build {shlex.join(options.argv)}"
    page = report_html(built, command=command)
    exported["report"] = str(write_report(Path(exported["library"]), page))
    cli_common.say(options, f"wrote {exported['report']}")
    if options.json:
        cli_common.print_json({"model": options.model, **exported})
    return 0


def _print_kernels(kernels: list[dict[str, Any]]) -> None:
    from hetero_tvm.host.terminal import Column, console, table

    columns = [Column("kernel", text=True), Column("calls"), Column("record", text=True)]
    rows = [(kernel["kernel"], kernel["calls"], kernel["record"]) for kernel in kernels]
    printer = console()
    printer.print(table("kernels", columns, rows, printer.width))


if __name__ == "__main__":
    sys.exit(main())
