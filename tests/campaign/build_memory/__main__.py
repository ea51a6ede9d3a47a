"""``python -m tests.campaign.build_memory``: memory of the road from a model file to the first call.

For each kind of file a process of its own imports, optimizes, builds, checks and exports a model, loads what
it exported and calls it; or a command of ours does what it does.  The peak is what all its processes have
resident together, seen from outside.  The same road with a model of some KB gives what the programs
themselves take.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.campaign.build_memory.roads import BAR, KINDS, measure, road, write_model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500, help="of weights in the file (default: 500)")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)} (default: all)")
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    parser.add_argument("--write", nargs=3, metavar=("KIND", "BYTES", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--road", nargs=3, metavar=("ROAD", "MODEL", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        kind, size, folder = options.write
        print(write_model(kind, int(size), Path(folder)))
        return 0
    if options.road:
        road(*options.road)
        return 0
    rows = {}
    heads = " ".join(f"{word:>8}" for word in ("file MB", "float MB", "peak MB", "base MB"))
    print(f"{'model':16} {heads} {'beyond/file':>11} {'/float':>6}")
    for kind in options.kinds.split(","):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            row = measure(kind, options.megabytes * 1_000_000, Path(folder))
        rows[kind] = row
        sizes = " ".join(f"{row[name] / 1e6:8.0f}" for name in ("weights", "floats", "full", "base"))
        steps = "  ".join(f"{name} {size / 1e6:.0f}" for name, size in row["steps"].items())
        beyond = row["full"] - row["base"]
        print(
            f"{kind:16} {sizes} {beyond / row['weights']:11.2f} {beyond / row['floats']:6.2f}   {steps}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["full"] - row["base"] > BAR * row["floats"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
