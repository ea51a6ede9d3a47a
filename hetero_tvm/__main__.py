"""``hetero-tvm COMMAND ...``, the same as ``python -m hetero_tvm.COMMAND ...``."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

COMMANDS = {
    "tune": "search schedules for a model, check it, export one .so",
    "build": "the same without searching",
    "quantize": "build with 8-bit products, and measure what that costs in accuracy",
    "generate": "continue texts with a language model that was built",
    "serve_text": "a language model behind HTTP, in the words of OpenAI's API",
    "bench": "how fast a model or library is, alone or beside other runtimes",
    "profile": "where the time of a library goes: kernels, source nodes, roofline, trace",
    "inspect": "what was fused and what was not, with reasons; memory; IR after each pass",
    "doctor": "this machine, its compilers, TVM, records, and what each extra would bring",
    "serve": "let other machines measure on this one (tune --rpc)",
    "db": "tuning records: list, merge, prune, exchange with MetaSchedule, train cost models",
    "plan": "plan buffers into one arena (MiniMalloc's CSV format)",
}
_WORDS_OF_OTHERS = {
    **dict.fromkeys(("compile", "convert", "export"), "build MODEL --out out"),
    **dict.fromkeys(("benchmark", "benchmark_app", "run", "perf"), "bench out/model.so"),
    **dict.fromkeys(("chat", "complete"), "generate out/chat --prompt TEXT"),
    **dict.fromkeys(("optimize", "fuse", "explain", "info", "summary"), "inspect MODEL"),
    **dict.fromkeys(("check", "validate", "accuracy"), "build MODEL (compares with a reference)"),
    **dict.fromkeys(("search", "autotune"), "tune MODEL --out out"),
    **dict.fromkeys(("trace", "roofline"), "profile out/model.so"),
    "calibrate": "quantize MODEL --data samples.npz",
}
"""Commands by what other tools call them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    from hetero_tvm.cli.streams import with_streams

    return with_streams(lambda: _run(arguments))


def _run(arguments: list[str]) -> int:
    word = arguments[0] if arguments else "help"
    as_json = "--json" in arguments
    if word in ("help", "-h", "--help", "completion"):
        arguments = [one for one in arguments if one != "--json"]
    if word in ("-V", "--version"):
        from hetero_tvm import __version__

        print(f"hetero-tvm {__version__}")
        return 0
    if word in ("help", "-h", "--help") and (len(arguments) < 2 or arguments[1] in ("help", "completion")):
        _tell({"commands": COMMANDS}, _overview(), as_json)
        return 0
    if word == "completion":
        return _completion(arguments[1:], as_json)
    if word == "help":
        word, arguments = arguments[1], [arguments[1], "--help"]
        if as_json and word in COMMANDS:
            parser = importlib.import_module(f"hetero_tvm.{word}").make_parser()
            _tell({"command": word, "help": parser.format_help()}, "", as_json)
            return 0
    if word not in COMMANDS:
        from hetero_tvm.errors import unknown_name

        if word.startswith("-"):
            message, hint = unknown_name("there is no option", word, ("--help", "--version"))
        else:
            known = (*COMMANDS, "help", "completion")
            message, hint = unknown_name("there is no command", word, known)
            if word in _WORDS_OF_OTHERS:
                hint = f"hetero-tvm {_WORDS_OF_OTHERS[word]}; known: {', '.join(known)}"
        return _refused(message, hint, as_json)
    return importlib.import_module(f"hetero_tvm.{word}").main(arguments[1:])


def _refused(message: str, hint: str, as_json: bool) -> int:
    """Say what is wrong and what to do; gives the exit status."""
    print(f"error: {message}\nWhat to do: {hint}", file=sys.stderr)
    if as_json:
        from hetero_tvm.cli.common import print_error

        print_error("UsageError", message, hint)
    return 2


def _tell(document: Mapping[str, Any], text: str, as_json: bool) -> None:
    print(json.dumps(document, indent=2) if as_json else text)


def _overview() -> str:
    lines = ["usage: hetero-tvm COMMAND [options]", "", "commands:"]
    lines += [f"  {name:12}{text}" for name, text in COMMANDS.items()]
    lines += [
        f"  {'help':12}this page, or the options of one command: hetero-tvm help tune",
        f'  {"completion":12}words for the shell: eval "$(hetero-tvm completion bash)", or zsh, or fish',
        "",
        "first steps:",
        "  hetero-tvm doctor                          is everything there?",
        "  hetero-tvm tune bert.onnx --batch 1 --sequence 128 --out out",
        "  hetero-tvm bench out/model.so              how fast is it?",
        "  hetero-tvm profile out/model.so            where does the time go?",
        "",
        "exit status: 0 done; 1 it failed; 2 the command line, the model or a file must be changed",
        "Each command (help and completion aside) is also python -m hetero_tvm.COMMAND.",
    ]
    return "\n".join(lines)


def _completion(arguments: Sequence[str], as_json: bool) -> int:
    from hetero_tvm.cli.names import SHELLS

    if len(arguments) != 1 or arguments[0] not in SHELLS:
        return _refused("completion takes the name of a shell", f"one of {', '.join(SHELLS)}", as_json)
    from hetero_tvm.cli import completion

    parsers = {name: importlib.import_module(f"hetero_tvm.{name}").make_parser() for name in COMMANDS}
    script = completion.script(arguments[0], parsers, COMMANDS)
    _tell({"shell": arguments[0], "script": script}, script.rstrip("\n"), as_json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
