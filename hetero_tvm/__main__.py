"""``hetero-tvm COMMAND ...``, the same as ``python -m hetero_tvm.COMMAND ...``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

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
SHELLS = ("bash", "zsh", "fish")
_WORDS_OF_OTHERS = {
    **dict.fromkeys(("compile", "convert", "export"), "build MODEL --out out"),
    **dict.fromkeys(("benchmark", "benchmark_app", "run", "perf"), "bench out/model.so"),
    **dict.fromkeys(("chat", "complete"), "generate out/chat --prompt TEXT"),
    **dict.fromkeys(("optimize", "fuse"), "inspect MODEL"),
    **dict.fromkeys(("trace", "roofline"), "profile out/model.so"),
    "calibrate": "quantize MODEL --data samples.npz",
}
"""Commands by what other tools call them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    word = arguments[0] if arguments else "help"
    if word in ("-V", "--version"):
        from hetero_tvm import __version__

        print(f"hetero-tvm {__version__}")
        return 0
    if word in ("help", "-h", "--help") and (len(arguments) < 2 or arguments[1] in ("help", "completion")):
        print(_overview())
        return 0
    if word == "completion":
        return _completion(arguments[1:])
    if word == "help":
        word, arguments = arguments[1], [arguments[1], "--help"]
    if word not in COMMANDS:
        from hetero_tvm.errors import unknown_name

        if word.startswith("-"):
            message, hint = unknown_name("there is no option", word, ("--help", "--version"))
        else:
            message, hint = unknown_name("there is no command", word, COMMANDS)
            if word in _WORDS_OF_OTHERS:
                hint = f"hetero-tvm {_WORDS_OF_OTHERS[word]}; {hint}"
        print(f"error: {message}\nWhat to do: {hint}", file=sys.stderr)
        if "--json" in arguments:
            from hetero_tvm.cli.common import print_error

            print_error("UsageError", message, hint)
        return 2
    return importlib.import_module(f"hetero_tvm.{word}").main(arguments[1:])


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
        "Each command is also python -m hetero_tvm.COMMAND.",
    ]
    return "\n".join(lines)


def _completion(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        print(
            f"error: completion takes the name of a shell\nWhat to do: one of {', '.join(SHELLS)}",
            file=sys.stderr,
        )
        return 2
    from hetero_tvm.cli import completion

    parsers = {name: importlib.import_module(f"hetero_tvm.{name}").make_parser() for name in COMMANDS}
    print(completion.script(arguments[0], parsers, COMMANDS), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
