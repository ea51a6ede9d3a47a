"""``python -m hetero_tvm.build MODEL``: build a model with the records there are, without searching."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetero_tvm.cli import common as cli_common
from hetero_tvm.cli.steps import Steps
from hetero_tvm.cli.tune_report import next_commands
from hetero_tvm.errors import UsageError
from hetero_tvm.host.native import find_compiler

_EXAMPLES = {
    "zoo:gpt2-small --out out/gpt2": "a model of the zoo, with the records there are",
    "net.onnx --batch 1 --target cuda:sm_80,sm_90": "one library for two GPUs; needs none",
    "net.onnx --shape x=[1,3,224,224] --no-shipped-records --logs runs": "records of one folder only",
}


def main(argv: Sequence[str] | None = None) -> int:
    return cli_common.run(_run, make_parser(), argv)


def make_parser() -> argparse.ArgumentParser:
    text = "Build a model from existing records (or defaults), check it, export one .so."
    parser = cli_common.parser("build", text, _EXAMPLES)
    cli_common.add_lengths(parser)
    parser.add_argument(
        "--verify", action="store_true", help="check the memory plan independently of the planner"
    )
    language = parser.add_argument_group(
        "language and embedding models (MODEL is a folder of transformers, or a GGUF file)"
    )
    language.add_argument(
        "--group", type=cli_common.positive, metavar="N", help="weights that share a scale: 32, 64 or 128"
    )
    language.add_argument("--zero-points", action="store_true", help="a zero of its own for every group")
    language.add_argument(
        "--activations",
        metavar="NAME",
        help="rows beside weights of 8 bits: int16 (default), or int8: prompts up to twice as fast; "
        "beside those of bf16: bf16, as much faster with AMX",
    )
    language.add_argument(
        "--cache",
        "--kv-dtype",
        metavar="NAME",
        help="keys and values: f32, f16 or int8 (default: f32 for f32 weights, else f16)",
    )
    language.add_argument(
        "--context", type=cli_common.positive, metavar="N", help="tokens of a text (default: the model's)"
    )
    return parser


def _run(options: argparse.Namespace) -> int:
    from hetero_tvm import api
    from hetero_tvm.compile.report_page import report_html, write_report
    from hetero_tvm.language.build import is_checkpoint
    from hetero_tvm.language.embedding.build import is_embedder

    cli_common.tell_missing_logs(options)
    find_compiler()  # not after a minute: the library is linked at the end
    if is_embedder(options.model) or is_checkpoint(options.model):
        return _run_language(options)
    given = [
        name for name in ("group", "zero_points", "activations", "cache", "context") if getattr(options, name)
    ]
    if given:
        names = ", ".join("--" + name.replace("_", "-") for name in given)
        raise UsageError(f"{names}: for language models, and {options.model} is none")
    steps = Steps(3, options.quiet)
    with steps.step("import and optimize"):
        optimized = cli_common.load_optimized(options)
    placement = optimized.target.placement(optimized.module, optimized.tasks)
    if placement is not None:
        cli_common.say(options, placement)
    with steps.step("compile"):
        built = api.build_model(optimized, logs=options.logs, use_shipped=not options.no_shipped_records)
    if not options.json and not options.quiet:
        _print_kernels(built.kernels)
    if options.verify:
        built.memory.verify()
        cli_common.say(options, f"memory plan verified: {built.memory.peak:,} bytes, nothing live overlaps")
    with steps.step("export" if options.no_check else "check and export"):
        exported = cli_common.export(built, options)
    command = f"python -m hetero_tvm.build {shlex.join(options.argv)}"
    page = report_html(built, command=command)
    exported["report"] = str(write_report(Path(exported["library"]), page))
    cli_common.say(options, f"wrote {exported['report']}")
    if options.json:
        cli_common.print_json({"model": options.model, **exported})
    if built.unrunnable is None:
        cli_common.say(options, next_commands(Path(exported["library"])), whole=True)
    return 0


def _run_language(options: argparse.Namespace) -> int:
    from hetero_tvm import api
    from hetero_tvm.language.checkpoints.checkpoint import read_json
    from hetero_tvm.language.embedding.build import is_embedder
    from hetero_tvm.language.families.configuration import hints_of
    from hetero_tvm.runtime.manifest import read_manifest

    sizes = ("batch", "sequence", "inputs", "shape", "lengths")
    if given := [f"--{name}" for name in sizes if getattr(options, name)]:
        raise UsageError(f"{', '.join(given)}: a language model takes texts of any length and number")
    if given := [f"--{name}" for name in ("value", "disable", "verify") if getattr(options, name)]:
        raise UsageError(f"{', '.join(given)}: not for language models, and {options.model} is one")
    cli_common.check_out(options.out)
    wanted = {name: getattr(options, name) for name in ("group", "zero_points", "activations", "context")}
    wanted["precision"] = options.precision or "f32"
    embeds = is_embedder(options.model)
    if embeds and options.cache is not None:
        raise UsageError("--cache is for models that generate, and this one embeds texts")
    with Steps(1, options.quiet).step("read the checkpoint, compile and export"):
        if embeds:
            path = api.build_embedding_model(options.model, options.out, options.target, **wanted)
        else:
            wanted["cache"] = options.cache
            path = api.build_language_model(options.model, options.out, options.target, **wanted)
    cli_common.say(options, f"wrote {path}")
    generation = path.parent / "generation_config.json"
    hints = hints_of(read_json(generation)) if generation.is_file() else []
    for hint in hints:
        cli_common.say(options, hint)
    if options.json:
        cli_common.print_json({"model": options.model, "library": str(path), "hints": hints})
    cli_common.say(options, next_commands(path, read_manifest(path).language), whole=True)
    return 0


def _print_kernels(kernels: list[dict[str, Any]]) -> None:
    from hetero_tvm.host.terminal import Column, console, record_cell, table

    columns = [Column("kernel", text=True), Column("calls"), Column("record", text=True)]
    rows = [(kernel["kernel"], kernel["calls"], record_cell(kernel["record"])) for kernel in kernels]
    printer = console()
    printer.print(table("kernels", columns, rows, printer.width))


if __name__ == "__main__":
    sys.exit(main())
