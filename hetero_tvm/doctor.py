"""``python -m hetero_tvm.doctor``: is everything there, and what would each extra bring?"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from hetero_tvm.cli import common as cli_common
from hetero_tvm.cli.parsing import EXITS, add_output_options, command_parser
from hetero_tvm.host.tables import fold
from hetero_tvm.host.terminal import console

_MARKS = {"ok": "ok", "optional": "-", "warning": "!", "missing": "MISSING"}
_MARGIN = 26
"""Columns before what was found: the mark and the name."""


def main(argv: Sequence[str] | None = None) -> int:
    return cli_common.run(_run, make_parser(), argv)


def make_parser() -> argparse.ArgumentParser:
    text = (
        "Look at this machine, its compilers, TVM, the packages, targets and records, and say what is "
        "missing and how to get it."
    )
    examples = {"": "a report to read", "--json": "the same for a bug report or a script"}
    parser = command_parser("doctor", text, examples, {**EXITS, 1: "something that is needed is missing"})
    add_output_options(parser)
    return parser


def _run(options: argparse.Namespace) -> int:
    from hetero_tvm.cli import doctor

    found = doctor.findings()
    missing = [one for one in found if one.status == doctor.MISSING]
    if options.json:
        document = {"findings": [dataclasses.asdict(one) for one in found], "missing": len(missing)}
        cli_common.print_json(document)
        return 1 if missing else 0
    part, room = None, console().width - _MARGIN
    for one in found:
        if one.part != part:
            part = one.part
            cli_common.say(options, part)
        head = f"  {_MARKS[one.status]:8}{one.name:16}"
        # A command stays in one line: whoever copies it shall get all of it.
        hint = [one.hint] if " -m pip " in one.hint else fold(one.hint, room)
        for line in [*fold(one.text, room), *filter(None, hint)]:
            cli_common.say(options, head + line, whole=True)
            head = " " * len(head)
    verdict = "everything that is needed is there"
    if missing:
        verdict = "1 thing is missing" if len(missing) == 1 else f"{len(missing)} things are missing"
    cli_common.say(options, verdict)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
