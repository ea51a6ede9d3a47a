"""The page of all commands is what the parsers say: ``python -m tests.test_commands_page`` writes it anew."""

import importlib

from hetero_tvm.__main__ import COMMANDS
from tests.import_graph import ROOT

PAGE = ROOT / "docs" / "commands.md"
HEAD = """# Commands

`hetero-tvm COMMAND`, or `python -m hetero_tvm.COMMAND`.  This page is written from the parsers
(`python -m tests.test_commands_page`); `--help` of a command says the same.  With `--json`, stdout is exactly
one JSON document, and progress goes to stderr; of a command that failed it is
`{"error": {"type", "message", "problems", "hint"}}`.

The shell completes commands, options, models and targets after `eval "$(hetero-tvm completion bash)"` (a line
for `~/.bashrc`; also `zsh`, and `hetero-tvm completion fish | source`).
"""


def _cell(text):
    return " ".join(str(text).split()).replace("|", "\\|").replace("%%", "%")


def _options(parser):
    rows = ["| option | meaning |", "|---|---|"]
    for action in parser._actions:
        if "--help" in action.option_strings or "--version" in action.option_strings or action.choices:
            continue
        names = ", ".join(action.option_strings) or str(action.metavar or action.dest)
        value = f" {action.metavar}" if action.option_strings and action.nargs != 0 and action.metavar else ""
        rows.append(f"| `{_cell(names + value)}` | {_cell(action.help or '')} |")
    return rows if len(rows) > 2 else []


def _examples(parser):
    lines = (parser.epilog or "").splitlines()
    shown = []
    for number, line in enumerate(lines):
        if line.startswith("  python -m "):
            shown.append(f"{line.strip()}  # {lines[number + 1].strip()}")
    return ["```sh", *shown, "```"] if shown else []


def page():
    """Text of the page."""
    parts = [HEAD]
    for name, text in COMMANDS.items():
        parser = importlib.import_module(f"hetero_tvm.{name}").make_parser()
        parts.append("\n".join([f"## {name}", "", _cell(text) + ".", "", _cell(parser.description), ""]))
        parts.append("\n".join([*_examples(parser), "", *_options(parser)]).strip() + "\n")
        for sub, one in parser.subcommands().items():
            rows = _options(one)
            parts.append(
                "\n".join([f"### {name} {sub}", "", _cell(one.description), "", *rows]).strip() + "\n"
            )
        exits = parser.epilog.partition("exit status:\n")[2].splitlines()
        parts.append("Exit status: " + "; ".join(_cell(line) for line in exits) + ".\n")
    return "\n".join(parts)


def test_the_page_is_what_the_parsers_say():
    assert PAGE.read_text() == page(), "python -m tests.test_commands_page writes it anew"


if __name__ == "__main__":
    PAGE.write_text(page())
