"""Steps of a session at states of two sizes, in place and as a function that copies them.

    python -m benchmarks.states [--rows 128,4096] [--rounds 200]

A step writes one row of eight heads of 64 into a static cache and reads one back: what it costs does not
depend on the rows where states are in place.  All forms take turns in one process; prints the best time of
each, and the ratios.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import hetero_tvm
from hetero_tvm.runtime.sessions import Session, states_of

_CALLS = 10
_MODEL = """
<ir_version: 8, opset_import: ["": 17]>
step (float[1, 8, 1, 64] x, int64[1] at, float[1, 8, ROWS, 64] cache)
    => (float[1, 8, 1, 64] y, float[1, 8, ROWS, 64] cache_out)
{
    axis = Constant<value_ints=[-1]>()
    where = Unsqueeze(at, axis)
    front = Transpose<perm=[2, 0, 1, 3]>(cache)
    rows = Transpose<perm=[2, 0, 1, 3]>(x)
    after = ScatterND(front, where, rows)
    cache_out = Transpose<perm=[1, 2, 0, 3]>(after)
    y = Gather<axis=2>(cache_out, at)
}
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="128,4096")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    sizes = [int(text) for text in options.rows.split(",")]
    steps: dict[tuple[int, str], Callable[..., Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for rows in sizes:
            model = hetero_tvm.import_model(onnx.parser.parse_model(_MODEL.replace("ROWS", str(rows))))
            built = hetero_tvm.build_model(hetero_tvm.optimize_model(model))
            net = hetero_tvm.load(built.export(Path(scratch) / str(rows)))
            steps[rows, "in place"] = net.session()
            steps[rows, "copied"] = Session(net, net.signature, states_of(net.signature))
        x, at = np.ones((1, 8, 1, 64), np.float32), np.array([5])
        best = dict.fromkeys(steps, float("inf"))
        for _ in range(options.rounds):
            for form, step in steps.items():
                start = time.perf_counter()
                for _ in range(_CALLS):
                    step(x, at)
                best[form] = min(best[form], (time.perf_counter() - start) / _CALLS)
    found = {f"{rows} rows, {form}": round(seconds * 1e6, 1) for (rows, form), seconds in best.items()}
    for form in ("in place", "copied"):
        found[f"{form}, {sizes[-1]} rows by {sizes[0]}"] = round(
            best[sizes[-1], form] / best[sizes[0], form], 2
        )
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
