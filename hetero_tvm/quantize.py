"""``python -m hetero_tvm.quantize MODEL``: 8-bit products, the accuracy measured, one .so exported."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from hetero_tvm.cli import common as cli_common

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
        help="dynamic: weights rounded now, activations row by row at run time (the only one so far)",
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


if __name__ == "__main__":
    sys.exit(main())
