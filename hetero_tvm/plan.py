"""``python -m hetero_tvm.plan FILE.csv``: offsets for buffers with live ranges, in MiniMalloc's format."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hetero_tvm.cli import common as cli_common
from hetero_tvm.cli.parsing import EXITS, add_output_options, command_parser
from hetero_tvm.errors import UsageError
from hetero_tvm.memory import Plan, Problem

_DEFAULT_SECONDS = 60.0


_MODELS = (".onnx", ".so", ".pt2", ".tflite")
"""Suffixes of models and libraries, which have a plan of their own."""


def main(argv: Sequence[str] | None = None) -> int:
    return cli_common.run(_run, make_parser(), argv)


_EXAMPLES = {
    "buffers.csv --capacity 1048576 --out plan.csv": "a plan within 1 MiB",
    "buffers.csv --seconds 5 --verify --plot arena.png": "the lowest peak in 5 s, checked and drawn",
}
_EXITS = {
    0: "the plan fits",
    1: "no plan within the capacity was found",
    2: EXITS[2],
    130: "ended by Ctrl-C, with the best plan until then",
}


def make_parser() -> argparse.ArgumentParser:
    text = "Give buffers with live ranges [lower, upper) offsets in one arena, as low as can be."
    parser = command_parser("plan", text, _EXAMPLES, _EXITS)
    parser.add_argument("file", type=Path, metavar="FILE.csv", help="columns id,lower,upper,size[,alignment]")
    parser.add_argument(
        "--capacity",
        type=cli_common.count,
        metavar="BYTES",
        help="stop at the first plan within it (default: look for the lowest peak)",
    )
    parser.add_argument(
        "-o", "--out", type=Path, metavar="OUT.csv", help="write the buffers with their offset"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=_DEFAULT_SECONDS,
        metavar="S",
        help=f"limit of the search (default: {_DEFAULT_SECONDS:g})",
    )
    parser.add_argument(
        "--alignment",
        type=cli_common.positive,
        default=1,
        metavar="BYTES",
        help="of every offset, a power of two (default: 1)",
    )
    parser.add_argument(
        "--seed", type=cli_common.count, default=0, metavar="N", help="of the search (default: 0)"
    )
    parser.add_argument("--verify", action="store_true", help="run the independent checker on the plan")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the arena over time (PNG, SVG, PDF)")
    add_output_options(parser)
    return parser


def _run(options: argparse.Namespace) -> int:
    from hetero_tvm.memory import check_plan, plan, read_csv, write_csv
    from hetero_tvm.memory.plot import check_picture, plot

    if str(options.file).startswith("zoo:") or options.file.suffix in _MODELS:
        model = "MODEL" if options.file.suffix == ".so" else options.file
        raise UsageError(
            f"{options.file} is a model or library, no list of buffers",
            hint=f"python -m hetero_tvm.inspect {model} --memory",
        )
    if options.out is not None and options.out.is_dir():
        raise UsageError(f"--out {options.out} is a folder")
    if options.plot is not None:
        check_picture(options.plot)
    problem, _ = read_csv(options.file)
    result = plan(
        problem,
        capacity=options.capacity,
        seconds=options.seconds,
        alignment=options.alignment,
        seed=options.seed,
        keep_on_interrupt=True,
    )
    if options.verify:
        check_plan(problem, result.offsets, capacity=result.peak, alignment=options.alignment)
    wanted = result.fits or result.interrupted  # who ends the search asks for what there is
    if options.out is not None and wanted:
        write_csv(options.out, problem, result.offsets)
    if options.plot is not None:
        plot(problem, result.offsets, options.plot, title=options.file.name, capacity=options.capacity)
    lines = _summary(options, problem, result)
    cli_common.say(options, "\n".join(lines))
    if options.json:
        cli_common.print_json(
            {
                "file": str(options.file),
                "buffers": len(problem),
                "fits": result.fits,
                "proven_impossible": result.impossible,
                "gap": result.gap,
                "verified": options.verify,
                "decisions": result.decisions,
                **result.to_dict(),
            }
        )
    if result.interrupted:
        return 130
    return 0 if result.fits else 1


def _why_impossible(problem: Problem, capacity: int) -> str:
    """Reason why no plan can fit."""
    time, live = problem.fullest()
    needed = sum(b.size for b in live)
    if needed > capacity:
        return f"at time {time:,}, {len(live):,} live buffers take {needed:,} bytes"
    return f"no more than {needed:,} bytes are live at any time, but no way to place them fits"


def _summary(options: argparse.Namespace, problem: Problem, result: Plan) -> list[str]:
    """Lines for people, sizes in bytes."""
    proof = "optimal" if result.optimal else f"{result.gap:.2%} above the lower bound"
    lines = [
        f"buffers      {len(problem):,}",
        f"peak         {result.peak:,} bytes ({proof})",
        f"lower bound  {result.lower_bound:,} bytes",
    ]
    if result.capacity is not None:
        if result.fits:
            verdict = "fits"
        elif result.impossible:
            verdict = f"proven impossible: {_why_impossible(problem, result.capacity)}"
        else:
            verdict = "no plan found within it; one may exist (try a larger --seconds)"
        lines.append(f"capacity     {result.capacity:,} bytes: {verdict}")
    ended = ", interrupted: the best plan until then" if result.interrupted else ""
    lines.append(f"time         {result.seconds or 0:.3f} s, {result.method}{ended}")
    if result.note:
        lines.append(f"note         {result.note}")
    if options.verify:
        lines.append("verified     no two live buffers overlap")
    if options.out is not None:
        written = "wrote      " if result.fits or result.interrupted else "not written"
        lines.append(f"{written}  {options.out}{'' if result.fits else ' (does not fit)'}")
    if options.plot is not None:
        lines.append(f"plot         {options.plot}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
