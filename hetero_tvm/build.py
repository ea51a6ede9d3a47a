"""``python -m hetero_tvm.build MODEL``: build a model with the records there are, without searching."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from hetero_tvm.cli import common as cli_common
from hetero_tvm.errors import UsageError


def main(argv: Sequence[str] | None = None) -> int:
    text = "Build a model from existing records (or defaults), check it, export one .so."
    parser = cli_common.parser("build", text)
    parser.add_argument(
        "--verify", action="store_true", help="check the memory plan independently of the planner"
    )
    language = parser.add_argument_group(
        "language models (MODEL is a folder of transformers, or a GGUF file)"
    )
    language.add_argument(
        "--group", type=cli_common.positive, help="weights that share a scale: 32, 64 or 128"
    )
    language.add_argument("--zero-points", action="store_true", help="a zero of its own for every group")
    language.add_argument("--cache", help="keys and values: f32 or f16 (default: f32 for f32 weights)")
    language.add_argument(
        "--context", type=cli_common.positive, help="tokens of a text (default: the model's)"
    )
    return cli_common.run(_run, parser, argv)


def _run(options: argparse.Namespace) -> int:
    from hetero_tvm import api
    from hetero_tvm.language.build import is_checkpoint

    if is_checkpoint(options.model):
        return _run_language(options)
    given = [name for name in ("group", "zero_points", "cache", "context") if getattr(options, name)]
    if given:
        names = ", ".join("--" + name.replace("_", "-") for name in given)
        raise UsageError(f"{names}: for language models, and {options.model} is none")
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
    if options.json:
        cli_common.print_json({"model": options.model, **exported})
    return 0


def _run_language(options: argparse.Namespace) -> int:
    from hetero_tvm import api

    given = [name for name in ("batch", "sequence", "inputs", "shape") if getattr(options, name)]
    if given:
        names = ", ".join("--" + name for name in given)
        raise UsageError(f"{names}: a language model takes texts of any length and number")
    cli_common.check_out(options.out)
    path = api.build_language_model(
        options.model,
        options.out,
        options.target,
        precision=options.precision or "f32",
        group=options.group,
        zero_points=options.zero_points,
        cache=options.cache,
        context=options.context,
    )
    cli_common.say(options, f"wrote {path}")
    if options.json:
        cli_common.print_json({"model": options.model, "library": str(path)})
    return 0


def _print_kernels(kernels: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="kernels", title_justify="left")
    table.add_column("kernel", overflow="fold")
    table.add_column("calls", justify="right")
    table.add_column("record", overflow="fold")
    for kernel in kernels:
        table.add_row(str(kernel["kernel"]), str(kernel["calls"]), str(kernel["record"]))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    sys.exit(main())
