"""``python -m hetero_tvm.quantize MODEL``: 8-bit products, the accuracy measured, one .so exported."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hetero_tvm.cli import common as cli_common
from hetero_tvm.errors import UsageError

if TYPE_CHECKING:
    from hetero_tvm.compile.quantize import Metric

_EXAMPLES = {
    "bert.onnx --batch 1 --sequence 128 --data samples.npz --out out/int8": "measured on data of your own",
    "zoo:minilm-l6 --least-cosine 0.999": "a higher bar: more layers stay in float32",
}


def main(argv: Sequence[str] | None = None) -> int:
    return cli_common.run(_run, make_parser(), argv)


def make_parser() -> argparse.ArgumentParser:
    text = (
        "Build a model with 8-bit products, measure what that costs beside float32, export one .so and "
        "accuracy.json.  Layers that would break the accuracy stay in float32."
    )
    parser = cli_common.parser("quantize", text, _EXAMPLES)
    parser.add_argument(
        "--method",
        default="dynamic",
        help="dynamic: weights rounded now, activations row by row at run time; static: their ranges "
        "found on --data, convolution networks in 8 bits from end to end (default: dynamic)",
    )
    parser.add_argument(
        "--calibration",
        default="minmax",
        help="how static finds ranges: minmax, percentile or entropy (default: minmax)",
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
        help="arrays by input name to measure on, with an axis of samples in front (default: sampled)",
    )
    parser.add_argument(
        "--least-cosine",
        type=float,
        default=0.99,
        metavar="C",
        help="bar for every output on every sample; layers stay in float32 until it holds (default: 0.99)",
    )
    parser.set_defaults(precision=None)
    return parser


def _run(options: argparse.Namespace) -> int:
    from hetero_tvm import api
    from hetero_tvm.compile.quantize import quantize_model
    from hetero_tvm.reference.given import read_inputs

    model, target = cli_common.load_model(options)
    built, report = quantize_model(
        model,
        lambda optimized: api.build_model(
            optimized, logs=options.logs, use_shipped=not options.no_shipped_records
        ),
        target=options.target,
        method=options.method,
        data=None if options.data is None else read_inputs(options.data),
        least_cosine=options.least_cosine,
        calibration=options.calibration,
        metric=None if options.metric is None else read_metric(options.metric),
    )
    cli_common.say(options, str(report))
    exported = cli_common.export(built, options)
    path = Path(exported["library"]).with_name("accuracy.json")
    document = {"least_cosine": report.least_cosine, **cli_common.plain(report)}
    path.write_text(json.dumps(document, indent=2) + "\n")
    cli_common.say(options, f"wrote {path}")
    if options.json:
        cli_common.print_json({"model": options.model, "quantization": document, **exported})
    return 0


def read_metric(text: str) -> Metric:
    """The function that ``FILE.py:FUNCTION`` names.

    Raises
    ------
    UsageError : there is no such file or function.
    """
    path, _, name = text.rpartition(":")
    hint = "write --metric FILE.py:FUNCTION; it takes {output name: array} and gives a number"
    if not path or not Path(path).is_file():
        raise UsageError(f"--metric {text}: there is no file {path or text}", hint=hint)
    metric = runpy.run_path(path).get(name)
    if not callable(metric):
        raise UsageError(f"--metric {text}: {path} has no function {name!r}", hint=hint)
    return metric


if __name__ == "__main__":
    sys.exit(main())
