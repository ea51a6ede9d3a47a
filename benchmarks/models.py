"""Models of the zoo beside their peers: untuned and tuned, one table.

    python benchmarks/models.py [--vs onnxruntime] [--trials 64] [--json FILE] [NAME ...]

Each model is built twice (no records; tuned from nothing) and compared with ``hetero_tvm.bench``: one
process per runtime, asked in turn, same cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NAMES = ("minilm-l6", "bert-base", "gpt2-small", "vit-b16", "llama-160m", "resnet50", "mobilenetv2")


def run(*arguments: str) -> dict[str, Any]:
    """JSON document that a command prints."""
    command = [sys.executable, "-m", *arguments, "--json", "-q"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def compare(name: str, folder: Path, trials: int, peers: str, rounds: int) -> dict[str, Any]:
    """Ratios of one model, untuned and (unless there are no trials) tuned; takes what the folder holds."""
    shared = ("--logs", str(folder / "logs"), "--no-shipped-records")
    out = {"untuned": folder / "untuned"}
    if not (out["untuned"] / "model.so").exists():
        run("hetero_tvm.build", f"zoo:{name}", *shared, "--out", str(out["untuned"]))
    row: dict[str, Any] = {"model": name, "trials": trials}
    if trials:
        out["tuned"] = folder / "tuned"
        tuned = (*shared, "--out", str(out["tuned"]), "--trials", str(trials))
        search = run("hetero_tvm.tune", f"zoo:{name}", *tuned)
        row["trials_per_s"] = search["search"]["trials_per_second"]
    for kind, library in out.items():
        row[kind] = run(
            "hetero_tvm.bench", str(library), "--model", f"zoo:{name}", "--vs", peers, "--rounds", str(rounds)
        )["runtimes"]
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--vs", default="onnxruntime")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    rows = []
    for name in options.names or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(compare(name, Path(folder), options.trials, options.vs, options.rounds))
        for kind in ("untuned", "tuned"):
            for result in rows[-1].get(kind, ()):
                runtime, ratio = result["name"], result.get("ratio_p10")
                text = result["status"]
                if text == "ok":
                    text = f"{result['median_ms']:9.2f} ms median, {result['p10_ms']:9.2f} ms p10"
                    text += "" if ratio is None else f"   ours / this (p10): {ratio:.3f}"
                print(f"{name:12} {kind:8} {runtime:16} {text}", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
