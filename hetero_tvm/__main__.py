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
    "bench": "compare a model or library with other runtimes, side by side",
    "inspect": "what was fused and what was not, with reasons; memory; IR after each pass",
    "profile": "what a library does on the NPU: cycles, utilisation, stalls and energy by operator",
    "serve": "let other machines measure on this one (tune --rpc)",
    "db": "tuning records: list, merge, prune, exchange with MetaSchedule, train cost models",
    "plan": "plan buffers into one arena (MiniMalloc's CSV format)",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = ["usage: hetero-tvm COMMAND [options]", "", "commands:"]
        lines += [f"  {name:10}{text}" for name, text in COMMANDS.items()]
        lines += ["", "hetero-tvm COMMAND --help tells the options of one."]
        print("\n".join(lines))
        return 0
    if arguments[0] in ("-V", "--version"):
        from hetero_tvm import __version__

        print(f"hetero-tvm {__version__}")
        return 0
    if arguments[0] not in COMMANDS:
        print(f"error: there is no command {arguments[0]!r}; known: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    return importlib.import_module(f"hetero_tvm.{arguments[0]}").main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main())
