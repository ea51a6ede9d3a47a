"""``python -m hetero_tvm.profile LIB``: where the time of an exported library goes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetero_tvm.cli import common as cli_common
from hetero_tvm.cli.parsing import add_output_options, command_parser
from hetero_tvm.cli.steps import warn_when_busy
from hetero_tvm.errors import UsageError

_EXAMPLES = {
    "out/model.so": "kernels and source nodes by time, GFLOP/s, % of roofline, balance of the threads",
    "out/model.so --trace trace.json": "a timeline for ui.perfetto.dev",
    "new/model.so --json > new.json": "a document to keep",
    "out/model.so --compare new.json": "what changed against it, kernel by kernel",
    "out/chat": "a language model: one token after 16 others",
}


def main(argv: Sequence[str] | None = None) -> int:
    return cli_common.run(_run, make_parser(), argv)


def make_parser() -> argparse.ArgumentParser:
    text = (
        "Show where the time of a library goes. On a CPU or GPU: each kernel, each node of the model, their "
        "speed beside the machine's roofs. On an NPU: cycles, utilisation, stalls and energy by operator."
    )
    parser = command_parser("profile", text, _EXAMPLES)
    parser.add_argument("library", type=Path, metavar="LIB", help="an exported .so, or its folder")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a Chrome/Perfetto trace (JSON)")
    parser.add_argument(
        "--compare", type=Path, metavar="OLD.json", help="what an earlier profile --json printed"
    )
    parser.add_argument(
        "--inputs", type=Path, metavar="FILE.npz", help="arrays by input name (default: sampled)"
    )
    parser.add_argument(
        "--shape",
        type=cli_common.shape,
        action="append",
        default=[],
        metavar="NAME=1x128",
        help="shape of an input that the library leaves open; may be repeated",
    )
    parser.add_argument("--threads", type=cli_common.positive, metavar="N", help="threads of a call")
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="about how long to call (1)")
    parser.add_argument(
        "--top", type=cli_common.positive, default=20, metavar="N", help="rows of each table (default: 20)"
    )
    add_output_options(parser)
    return parser


def _run(options: argparse.Namespace) -> int:
    import hetero_tvm
    from hetero_tvm.benchmarking.subject import Sizes, from_library
    from hetero_tvm.generation.facts import EMBEDDING
    from hetero_tvm.runtime.opening import resolve
    from hetero_tvm.targets.registry import target_class

    path = resolve(options.library.expanduser())
    if options.trace is not None and not options.trace.absolute().parent.is_dir():
        raise UsageError(f"--trace {options.trace}: there is no folder {options.trace.parent}")
    if not options.seconds > 0:
        raise UsageError(f"--seconds must be positive, got {options.seconds}")
    before = None if options.compare is None else _read(options.compare)
    net = hetero_tvm.load(path, threads=options.threads)
    kind = target_class(net.manifest.target.kind)
    if EMBEDDING in net.manifest.language and not options.shape and options.inputs is None:
        hint = f"python -m hetero_tvm.profile {path.parent} --shape ids=128 --shape positions=128"
        raise UsageError("a model that embeds texts is profiled at a number of tokens", hint=hint)
    if net.manifest.language and not options.shape and options.inputs is None:
        from hetero_tvm.benchmarking.decode import one_token
        from hetero_tvm.generation.model import LanguageModel

        with one_token(LanguageModel(net)) as call:
            profile = net.profile_call(call, options.seconds, one_row=True)
    else:
        sizes = Sizes(dict(options.shape), given=options.inputs)
        inputs = from_library(path, None, None, path.parent, sizes).inputs
        profile = kind.profile(net, lambda: net(**inputs), options.seconds)
    document = {"library": str(path), **profile.to_json()}
    if "kernels" in document:  # not a simulator's cycles
        warn_when_busy(net.threads)
    if options.trace is not None:
        profile.write_trace(options.trace)
        cli_common.say(options, f"wrote {options.trace}: open it at ui.perfetto.dev or chrome://tracing")
    if before is not None and "kernels" not in document:
        raise UsageError("--compare is for libraries of a CPU or GPU", hint="compare the documents of --json")
    if options.json:
        cli_common.print_json({**document, **_comparison(before, document)})
    elif not options.quiet:
        _show(profile, before, document, options.top)
    return 0


def _show(profile: Any, before: dict[str, Any] | None, document: dict[str, Any], top: int) -> None:
    from hetero_tvm.host.terminal import console
    from hetero_tvm.pages.profile_tables import show_comparison

    printer = console()
    profile.show(printer, top)
    if before is not None:
        show_comparison(before, document, printer, top)


def _comparison(before: dict[str, Any] | None, document: dict[str, Any]) -> dict[str, Any]:
    from hetero_tvm.pages.profile_tables import compare_profiles

    return {} if before is None else {"changes": compare_profiles(before, document)}


def _read(path: Path) -> dict[str, Any]:
    from hetero_tvm.benchmarking.baseline import read_document

    hint = "write one with: python -m hetero_tvm.profile model.so --json > old.json"
    document = read_document(path, "--compare", hint)
    if not isinstance(document, dict) or "kernels" not in document or "call_ms" not in document:
        raise UsageError(f"--compare {path} is no document of profile", hint=hint)
    return document


if __name__ == "__main__":
    sys.exit(main())
