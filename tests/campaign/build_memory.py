"""``python -m tests.campaign.build_memory``: memory of the road from a model file to the first call.

For each kind of file a process of its own imports, optimizes, builds, checks and exports a model, loads what
it exported and calls it; the peak is what all its processes have resident together, seen from outside.  The
same road with a model of some KB gives what the programs themselves take.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

KINDS = ("external", "single", "constants", "pt2")
BAR = 2.5
_WIDTH, _INNER, _ROWS = 1024, 4096, 4
_LAYER = 2 * _WIDTH * _INNER * 4


def write_model(kind: str, size: int, folder: Path) -> Path:
    """An MLP of about ``size`` bytes as ONNX with external data, in one file (weights as initializers, or as
    nodes), or as a PyTorch program."""
    layers = max(1, round(size / _LAYER)) if size else 0
    if kind == "pt2":
        return _write_program(layers, folder / "model.pt2")
    return _write_onnx(kind, layers, folder / "model.onnx")


def _write_onnx(kind: str, layers: int, path: Path) -> Path:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes, tensors, x = [], [], "x"
    for n in range(layers):
        for name, shape in ((f"up{n}", (_WIDTH, _INNER)), (f"down{n}", (_INNER, _WIDTH))):
            weight = rng.standard_normal(shape, dtype=np.float32) / np.float32(2 * shape[0] ** 0.5)
            tensor = numpy_helper.from_array(weight, name)
            if kind == "constants":
                nodes.append(helper.make_node("Constant", [], [name], value=tensor))
            else:
                tensors.append(tensor)
        nodes += [
            helper.make_node("MatMul", [x, f"up{n}"], [f"a{n}"]),
            helper.make_node("Relu", [f"a{n}"], [f"b{n}"]),
            helper.make_node("MatMul", [f"b{n}", f"down{n}"], [f"c{n}"]),
            helper.make_node("Add", [f"c{n}", x], [f"y{n}"]),
        ]
        x = f"y{n}"
    nodes.append(helper.make_node("Relu", [x], ["y"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [_ROWS, _WIDTH]) for name in "xy"]
    graph = helper.make_graph(nodes, "mlp", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    if kind == "external":
        onnx.save(model, str(path), save_as_external_data=True, location="model.data")
    else:
        onnx.save(model, str(path))
    return path


def _write_program(layers: int, path: Path) -> Path:
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = torch.nn.ModuleList(torch.nn.Linear(_WIDTH, _INNER) for _ in range(layers))
            self.down = torch.nn.ModuleList(torch.nn.Linear(_INNER, _WIDTH) for _ in range(layers))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for up, down in zip(self.up, self.down, strict=True):
                x = x + down(torch.relu(up(x)))
            return torch.relu(x)

    torch.export.save(torch.export.export(Model().eval(), (torch.zeros(_ROWS, _WIDTH),)), path)
    return path


def road(model: str, out: str) -> None:
    """Import, optimize, build, check, export, load, first call."""
    import hetero_tvm

    optimized = hetero_tvm.optimize_model(hetero_tvm.import_model(model))
    built = hetero_tvm.build_model(optimized, logs=f"{out}/logs")
    built.check()
    net = hetero_tvm.load(built.export(out))
    net(*(np.zeros(spec.shape, spec.dtype) for spec in net.signature.inputs))


def peak_of(command: list[str]) -> int:
    """Largest number of bytes that a command and all processes below it have resident at the same time."""
    process = psutil.Popen(command)
    peak = 0
    while process.poll() is None:
        total = 0
        for one in _tree(process):
            try:
                total += one.memory_info().rss
            except psutil.Error:
                continue
        peak = max(peak, total)
        time.sleep(0.005)  # the rate at which it is seen, not a wait for anything
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return peak


def _tree(process: psutil.Process) -> Iterator[psutil.Process]:
    yield process
    try:
        yield from process.children(recursive=True)
    except psutil.Error:
        return


def measure(kind: str, size: int, folder: Path) -> dict[str, float]:
    """Bytes of the weights, the peak with them, and the peak of a model without any."""
    peaks = {}
    for name, amount in (("base", 0), ("full", size)):
        place = folder / f"{kind}-{name}"
        place.mkdir(parents=True)
        command = [
            sys.executable,
            "-m",
            "tests.campaign.build_memory",
            "--write",
            kind,
            str(amount),
            str(place),
        ]
        written = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
        command = [sys.executable, "-m", "tests.campaign.build_memory", "--road", written, str(place / "out")]
        peaks[name] = peak_of(command)
    return {"weights": max(1, round(size / _LAYER)) * _LAYER, **peaks}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500, help="of weights (default: 500)")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)} (default: all)")
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    parser.add_argument("--write", nargs=3, metavar=("KIND", "BYTES", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--road", nargs=2, metavar=("MODEL", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        kind, size, folder = options.write
        print(write_model(kind, int(size), Path(folder)))
        return 0
    if options.road:
        road(*options.road)
        return 0
    rows = {}
    print(f"{'model':10} {'weights MB':>10} {'peak MB':>8} {'ratio':>6} {'base MB':>8} {'ratio beyond':>12}")
    for kind in options.kinds.split(","):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            row = measure(kind, options.megabytes * 1_000_000, Path(folder))
        rows[kind] = row
        ratio, beyond = row["full"] / row["weights"], (row["full"] - row["base"]) / row["weights"]
        sizes = [row[name] / 1e6 for name in ("weights", "full", "base")]
        print(
            f"{kind:10} {sizes[0]:10.0f} {sizes[1]:8.0f} {ratio:6.2f} {sizes[2]:8.0f} {beyond:12.2f}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any((row["full"] - row["base"]) / row["weights"] > BAR for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
