"""Style of all command lines: help with examples and exit codes, refusals that know what was meant."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NoReturn

from hetero_tvm.cli.others import in_our_words
from hetero_tvm.errors import did_you_mean, unknown_name
from hetero_tvm.host.install import as_typed
from hetero_tvm.version import VERSION

EXITS = {
    0: "done",
    1: "tuning, building, checking or running failed",
    2: "the command line, the model or a file must be changed",
    130: "ended by Ctrl-C (143: SIGTERM, 129: SIGHUP)",
}
"""Exit codes of every command, unless it says otherwise."""

_WIDEST = 100


class Refusal(SystemExit):
    """End of a command whose line cannot be, with what was said about it."""

    def __init__(self, message: str, hint: str):
        super().__init__(2)
        self.message, self.hint = message, hint


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, 100 columns at most; examples keep their lines."""

    def __init__(self, prog: str):
        width = min(_WIDEST, max(60, shutil.get_terminal_size().columns - 2))
        super().__init__(prog, max_help_position=26, width=width)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = [
            line if line[:1] == " " else textwrap.fill(line, width, initial_indent=indent)
            for line in text.splitlines()
        ]
        return "\n".join(filled)


class Parser(argparse.ArgumentParser):
    """Command line of one command.

    Options may not be abbreviated: a new option must not change what an old command line means.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        kwargs.setdefault("formatter_class", _Formatter)
        super().__init__(*args, allow_abbrev=False, **kwargs)
        self.add_argument(
            "--version", action="version", version=f"hetero-tvm {VERSION}", help="print the version, and end"
        )

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """Options of a command line; one that cannot be ends the process with status 2."""
        args = sys.argv[1:] if args is None else list(args)
        # argparse reads -hint as -h; a word with one dash is one option of another tool.
        for word in takewhile("--".__ne__, args):
            if re.fullmatch(r"-[a-z_]{3,}", word) and (hint := in_our_words([word], self.options())):
                self.error(f"unrecognized arguments: {word}", hint)
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            hints = self._several_values(args, unknown)
            self.error(f"unrecognized arguments: {' '.join(unknown)}", unknown, hints)
        return options

    def _several_values(self, args: Sequence[str], unknown: Sequence[str]) -> list[str]:
        """Ways to write what was given as several words behind an option that takes one."""
        hints = []
        for at, word in enumerate(args):
            action = self._option_string_actions.get(word)
            if action is None or action.nargs is not None:
                continue
            values = list(takewhile(lambda one: not one.startswith("-"), args[at + 1 :]))
            if not set(values[1:]) & set(unknown):
                continue
            if values[1] not in unknown:  # it was taken for the model, and what was left over is the model
                values.pop()
            if isinstance(action, argparse._AppendAction):
                hints.append(f"{word} is repeated: " + " ".join(f"{word} {one}" for one in values) + ";")
            elif "," in (action.metavar or ""):
                hints.append(f"{word} takes one list: {word} {','.join(one.strip(',') for one in values)};")
        return hints

    def error(self, message: str, unknown: Sequence[str] = (), hints: Sequence[str] = ()) -> NoReturn:
        """End with the message, how it was probably meant, and where all options are listed."""
        known = self.options()
        of_others = in_our_words(unknown, known)
        for word in unknown:
            if word in of_others:
                hints = [*hints, f"{word} is {of_others[word]};"]
            elif word.startswith("--") and (guess := did_you_mean(word.partition("=")[0], known)):
                hints = [*hints, f"{word}: {guess}"]
        advice = " ".join([*hints, f"{self.prog} --help lists what there is"])
        sys.stderr.write(f"error: {message}\nWhat to do: {advice}\n")
        raise Refusal(message, advice)

    def options(self) -> list[str]:
        """Long names of the options, those of subcommands included."""
        found = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        for one in self.subcommands().values():
            found += one.options()
        return list(dict.fromkeys(found))

    def subcommands(self) -> dict[str, Parser]:
        """Parsers of the subcommands, by name."""
        actions = (one for one in self._actions if isinstance(one, argparse._SubParsersAction))
        return {name: one for action in actions for name, one in action.choices.items()}

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is no choice, with the choices that it may have meant."""
        if action.choices is not None and value not in action.choices:
            message, hint = unknown_name("there is no", str(value), map(str, action.choices))
            raise argparse.ArgumentError(action, f"{message} ({hint})")


def command_parser(
    command: str,
    description: str,
    examples: Mapping[str, str],
    exits: Mapping[int, str] = EXITS,
    notes: str = "",
) -> Parser:
    """A parser of one command, without options of its own.

    Parameters
    ----------
    examples : command lines behind the command's name, and what each is for.
    exits : meaning of each exit code.
    notes : sentences between the examples and the exit codes.
    """
    prog = as_typed(f"python -m hetero_tvm.{command}")
    lines = ["examples:"]
    for arguments, purpose in examples.items():
        lines += [f"  {prog} {arguments}".rstrip(), f"      {purpose}"]
    if notes:
        lines += ["", notes]
    lines += ["", "exit status:", *(f"  {code:<4} {text}" for code, text in exits.items())]
    return Parser(prog=prog, description=description, epilog="\n".join(lines))


def named(text: str) -> str:
    """A path or a name, which an empty text (a variable of the shell that is not set) is not; an argparse
    type."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty: is a variable of the shell not set?")
    return text


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """``--json`` and ``--quiet``, which every command has."""
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
