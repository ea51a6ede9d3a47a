"""``python -m hetero_tvm.db COMMAND``: tuning records as a database."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hetero_tvm.cli import common as cli_common
from hetero_tvm.cli.parsing import EXITS, add_output_options, command_parser

_EXAMPLES = {
    "list --op 'matmul*' --shape 128x768": "records of some products",
    "best --target cpu": "what builds take, kernel by kernel",
    "show matmul_128x768x768_bias": "every trial of a kernel, fastest first",
    "verify": "is anything wrong with the files?",
    "merge /mnt/other/logs": "take over another machine's records",
    "prune --winners --machine znver4": "keep only what builds take",
    "export metaschedule_db": "as MetaSchedule's JSONDatabase",
    "train": "cost models from all that is known",
}
_NOTES = "Searches may run meanwhile: files are locked, and what is rewritten is put into place as a whole."


def main(argv: Sequence[str] | None = None) -> int:
    return cli_common.run(_run, make_parser(), argv)


def _run(options: argparse.Namespace) -> int:
    from hetero_tvm.cli import db_actions  # imports TVM, which help and refusals do without

    return db_actions.run(options)


def make_parser() -> argparse.ArgumentParser:
    text = "Look at tuning records, move them between machines, learn from them."
    parser = command_parser("db", text, _EXAMPLES, {**EXITS, 1: "verify found something"}, _NOTES)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=text, description=text)
        one.add_argument("--logs", type=Path, metavar="DIR", help="records (default: a user data folder)")
        one.add_argument("--shipped", action="store_true", help="the records that came with the package")
        one.add_argument("--op", default="", metavar="PATTERN", help="of the kernel's or the space's name")
        one.add_argument(
            "--shape", dest="extents", default="", metavar="128x768", help="extents in the kernel's name"
        )
        one.add_argument(
            "--target",
            default="",
            metavar="KIND",
            help="cpu, cuda, npu, or another's kind",
        )
        one.add_argument("--machine", default="", metavar="PATTERN", help="microarchitecture or device")
        one.add_argument("--role", default="", metavar="ROLE", help="trial, verified, baseline, ranked")
        add_output_options(one)
        return one

    command("list", "one line per record")
    show = command("show", "every record of the kernels of a name, fastest first")
    show.add_argument("task", help="a name or pattern, as list prints it")
    command("best", "the record that a build takes, of each kernel on each machine")
    command("stats", "how many records, of what, from where, since when")
    command("verify", "lines that are no records, contradictions, points that no space has any more")
    merge = command("merge", "append the records of other files or folders that are not here yet")
    merge.add_argument("sources", nargs="+", type=Path, metavar="FILE|DIR")
    prune = command(
        "prune", "rewrite the files without what no longer counts: trials that were disturbed or made again"
    )
    prune.add_argument("--winners", action="store_true", help="keep only what builds take")
    export = command("export", "write a database of MetaSchedule (JSONDatabase) into DIR")
    export.add_argument("out", type=Path, metavar="DIR")
    read = command("import", "take over a database of MetaSchedule as trials of this machine")
    read.add_argument("source", type=Path, metavar="DIR")
    train = command("train", "train cost models from tables and records; searches begin with them")
    train.add_argument(
        "--out", type=Path, metavar="DIR", help="where the models go (default: beside the records)"
    )
    train.add_argument("--only-tables", action="store_true", help="leave out the records of this machine")
    return parser


if __name__ == "__main__":
    sys.exit(main())
