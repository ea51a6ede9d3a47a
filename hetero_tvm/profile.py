"""``python -m hetero_tvm.profile LIB``: what an exported library does in one call, operator by operator."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hetero_tvm.cli import common as cli_common
from hetero_tvm.cli.parsing import add_output_options, command_parser
from hetero_tvm.errors import UsageError
from hetero_tvm.runtime.signature import Signature

_EXAMPLES = {
    "out/model.so": "which kernels and source nodes take the time",
    "out/model.so --trace trace.json": "a timeline for ui.perfetto.dev",
}


def main(argv: Sequence[str] | None = None) -> int:
    return cli_common.run(_run, make_parser(), argv)


def make_parser() -> argparse.ArgumentParser:
    text = "Run a library once: cycles, utilisation, stalls and energy of what its device does."
    parser = command_parser("profile", text, _EXAMPLES)
    parser.add_argument("library", type=Path, help="an exported .so, or its folder")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a Chrome/Perfetto trace (JSON)")
    parser.add_argument(
        "--top", type=cli_common.positive, default=20, metavar="N", help="operators to list (default: 20)"
    )
    add_output_options(parser)
    return parser


def _run(options: argparse.Namespace) -> int:
    import hetero_tvm
    from hetero_tvm.runtime.opening import resolve
    from hetero_tvm.targets.registry import target_class

    path = resolve(options.library.expanduser())
    if options.trace is not None and not options.trace.absolute().parent.is_dir():
        raise UsageError(f"--trace {options.trace}: there is no folder {options.trace.parent}")
    net = hetero_tvm.load(path)
    inputs = _inputs(net.signature)
    profile = target_class(net.manifest.target.kind).profile(net, lambda: net(**inputs))
    if options.trace is not None:
        profile.write_trace(options.trace)
        cli_common.say(options, f"wrote {options.trace}")
    if options.json:
        cli_common.print_json({"library": str(path), **profile.to_json()})
    elif not options.quiet:
        from rich.console import Console

        profile.show(Console(width=None if sys.stdout.isatty() else 160), options.top)
    return 0


def _inputs(signature: Signature) -> dict[str, np.ndarray]:
    """Valid values for every input: what they are does not change the time."""
    rng = np.random.default_rng(0)
    result = {}
    for spec in signature.inputs:
        dtype = np.dtype(spec.dtype)
        shape = tuple(spec.shape)
        floats = dtype.kind == "f"
        result[spec.name] = rng.standard_normal(shape).astype(dtype) if floats else np.ones(shape, dtype)
    return result


if __name__ == "__main__":
    sys.exit(main())
