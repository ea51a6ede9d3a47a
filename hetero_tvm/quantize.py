"""``python -m hetero_tvm.quantize MODEL``: products of few bits, the accuracy measured, one .so exported."""

from __future__ import annotations

import argparse
import json
import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hetero_tvm.cli import common as cli_common
from hetero_tvm.errors import UsageError
from hetero_tvm.host.files import write_whole
from hetero_tvm.host.native import find_compiler

if TYPE_CHECKING:
    from hetero_tvm.compile.quantize import Metric
    from hetero_tvm.ops.decoding.storage import Storage

_EXAMPLES = {
    "bert.onnx --batch 1 --sequence 128 --data samples.npz --out out/int8": "measured on data of your own",
    "zoo:minilm-l6 --least-cosine 0.999": "a higher bar: more layers stay in float32",
    "llama.onnx --method weight-only --bits 4 --group 32 --zero-points": "weights in an eighth of the memory",
}


def main(argv: Sequence[str] | None = None) -> int:
    return cli_common.run(_run, make_parser(), argv)


def make_parser() -> argparse.ArgumentParser:
    text = (
        "Build a model with products of few bits, measure what that costs beside float32, export one .so and "
        "accuracy.json.  Layers that would break the accuracy stay in float32."
    )
    parser = cli_common.parser("quantize", text, _EXAMPLES, out="out/int8")
    parser.add_argument(
        "--method",
        default="dynamic",
        help="dynamic: weights rounded now, activations row by row at run time; smooth: as dynamic, after "
        "outliers that --data shows were moved into the weights; static: ranges found on --data, "
        "convolution networks in 8 bits from end to end; weight-only: weights alone (default: dynamic)",
    )
    parser.add_argument(
        "--bits", type=int, choices=(4, 8), help="bits of a weight with weight-only (default: 8)"
    )
    parser.add_argument(
        "--group",
        type=int,
        metavar="N",
        help="weights of weight-only that share a scale: 32, 64 or 128 (default: 32 with 4 bits, else 128)",
    )
    parser.add_argument(
        "--zero-points", action="store_true", help="zero points for groups of weight-only, beside the scales"
    )
    parser.add_argument(
        "--calibration",
        default="minmax",
        help="how static finds ranges: minmax, percentile, mse or entropy (default: minmax)",
    )
    parser.add_argument(
        "--metric",
        metavar="FILE.py:FUNCTION",
        help="function that judges outputs, {name: array with samples in front} -> number, for the report",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FILE.npz",
        help="arrays by input name to measure on, with an axis of samples in front, or batch after batch "
        "(default: sampled)",
    )
    parser.add_argument(
        "--least-cosine",
        type=cli_common.cosine,
        default=0.99,
        metavar="C",
        help="bar for every output on every sample; layers stay in float32 until it holds (default: 0.99)",
    )
    parser.set_defaults(precision=None)
    return parser


def _run(options: argparse.Namespace) -> int:
    from hetero_tvm import api
    from hetero_tvm.cli.steps import Steps
    from hetero_tvm.compile.quantize import check_settings, quantize_model
    from hetero_tvm.compile.report_page import report_html, write_report
    from hetero_tvm.reference.given import read_inputs

    cli_common.tell_missing_logs(options)
    find_compiler()  # not after a minute: the library is linked at the end
    metric = None if options.metric is None else read_metric(options.metric)
    storage = storage_of(options)
    data = None if options.data is None else read_inputs(options.data)
    # A model may take minutes to read.
    check_settings(options.method, options.calibration, options.target, data is not None, storage)
    steps = Steps(3, options.quiet)
    with steps.step("import"):
        model, target = cli_common.load_model(options)
    with steps.step("quantize, compile and measure beside float32"):
        built, report = quantize_model(
            model,
            lambda optimized: api.build_model(
                optimized, logs=options.logs, use_shipped=not options.no_shipped_records
            ),
            target=options.target,
            method=options.method,
            data=data,
            least_cosine=options.least_cosine,
            calibration=options.calibration,
            metric=metric,
            storage=storage,
        )
    cli_common.say(options, str(report))
    with steps.step("export" if options.no_check else "check and export"):
        exported = cli_common.export(built, options)
    path = Path(exported["library"]).with_name("accuracy.json")
    document = {"least_cosine": report.least_cosine, **cli_common.plain(report)}
    write_whole(path, json.dumps(document, indent=2) + "\n")
    cli_common.say(options, f"wrote {path}")
    page = report_html(built, command=f"python -m hetero_tvm.quantize {shlex.join(options.argv)}")
    exported["report"] = str(write_report(Path(exported["library"]), page))
    cli_common.say(options, f"wrote {exported['report']}")
    if options.json:
        cli_common.print_json({"model": options.model, "quantization": document, **exported})
    return 0


def storage_of(options: argparse.Namespace) -> Storage | None:
    """The form of weights that the options ask for; None where they ask for none.

    Raises
    ------
    UsageError : there are no such groups, or the method stores no weights in groups.
    """
    given = {"--bits": options.bits, "--group": options.group, "--zero-points": options.zero_points or None}
    named = [name for name, value in given.items() if value is not None]
    if options.method != "weight-only":
        if named:
            raise UsageError(f"{', '.join(named)}: for --method weight-only", hint="--method weight-only")
        return None
    from hetero_tvm.ops.decoding.storage import Storage

    return Storage.named(f"int{options.bits or 8}", options.group, options.zero_points)


def read_metric(text: str) -> Metric:
    """The function that ``FILE.py:FUNCTION`` names.

    Raises
    ------
    UsageError : there is no such file or function, or the file does not run.
    """
    path, _, name = text.rpartition(":")
    hint = "write --metric FILE.py:FUNCTION; it takes {output name: array} and gives a number"
    if not path or not Path(path).is_file():
        raise UsageError(f"--metric {text}: there is no file {path or text}", hint=hint)
    try:
        metric = runpy.run_path(path).get(name)
    except Exception as error:
        raise UsageError(f"--metric {text}: {type(error).__name__}: {error}", hint=hint) from error
    if not callable(metric):
        raise UsageError(f"--metric {text}: {path} has no function {name!r}", hint=hint)
    return metric


if __name__ == "__main__":
    sys.exit(main())
