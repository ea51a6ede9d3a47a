"""Simulated cycles of models on the NPU against their bound, and the worth of single features.

    python benchmarks/npu.py [MODEL ...] [--target npu:mobile] [--without]

The bound of a model is the largest of three: the fewest cycles of the matrix unit (whole blocks of every
product), the fewest of the vector unit (what leaves the accumulators, one pass each), and compulsory
bytes (weights, inputs and outputs of the NPU's regions, once each; of embedding tables the rows that are
looked up) over the DRAM bandwidth.  ``--without`` compiles the model again without double buffering, and
without fusion (every result through DRAM, every step behind a product a kernel of its own), with the same
tiles: see ``benchmarks/npu_ablation``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.npu_ablation.single_buffered import SingleBufferedKernels, SingleBufferedRegion
from benchmarks.npu_ablation.unfused import UnfusedRegion
from hetero_tvm import api
from hetero_tvm.host.terminal import Column, console, table
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.schedules.npu.images.conv2d_tiles import as_product
from hetero_tvm.schedules.npu.images.depthwise_matrix import NpuDepthwiseMatrixSpace
from hetero_tvm.targets.npu.device.driver import open_device
from hetero_tvm.targets.npu.regions.graph_region import GraphRegion
from hetero_tvm.targets.npu.regions.lowering import compile_regions
from hetero_tvm.targets.npu.regions.placement import place
from hetero_tvm.targets.npu.regions.region import KernelCache

MODELS = ("zoo:bert-base", "zoo:vit-b16", "zoo:resnet50", "zoo:mobilenetv2")


def measure(
    model: Any, region_type: type[GraphRegion] = GraphRegion, kernels: type[KernelCache] = KernelCache
) -> tuple[float, int]:
    """Cycles of all regions of an optimized model, and the bytes of their constants, inputs and outputs."""
    cycles, stored = 0.0, 0
    cache = kernels(model.target.machine)
    with open_device(model.target.spec) as device:
        for region in compile_regions(model.module, model.tasks, {}, model.target, region_type, cache):
            cycles += device.time(device.load(region.stream)).counters.cycles
            stored += len(region.constants) + sum(region.inputs) + sum(region.outputs)
    return cycles, stored


def _more_than_needed(op: Any, machine: Any) -> int:
    """Stored bytes beyond what is compulsory: rows of embedding tables that no index can reach in one call,
    and the zeros beside the diagonals of depthwise weights."""
    if op.kind == "embedding_norm":
        rows = (max(0, x.rows - math.prod(x.indices)) for x in op.lookups)
        return 2 * op.n * sum(rows)
    space = NpuDepthwiseMatrixSpace()
    if isinstance(op, Conv2d) and op.depthwise and space.refuses(op, machine) is None:
        return 2 * (space.weight_elements(op, machine) - op.channels * math.prod(op.kernel))
    return 0


def least(model: Any) -> tuple[float, float, int]:
    """Fewest cycles of the matrix unit and of the vector unit over the operators on the NPU, and the bytes
    that are stored for them and are not compulsory."""
    placed = place(model.module, model.tasks, model.target)
    spec, machine = model.target.spec, model.target.machine
    matrix, vector, spare = 0.0, 0.0, 0
    for var, value in placed.regions.order:
        if var not in placed.regions.region_of or not hasattr(value, "args"):
            continue
        task = placed.task_of.get(value.args[0])
        if task is None:
            continue
        blocks, elements = _work(task.op, spec)
        matrix += blocks
        vector += elements * 4.0 / spec.l0c_to_ub
        spare += _more_than_needed(task.op, machine)
    return matrix, vector, spare


def _work(op: Any, spec: NPUSpec) -> tuple[float, float]:
    """Cycles of whole blocks, and elements that leave the accumulators."""
    if isinstance(op, Conv2d):
        if op.groups != 1:
            return 0.0, 0.0
        op = as_product(op)
    if op.kind == "matmul":
        return spec.matrix_cycles(op.m, op.n, op.k), op.m * op.n
    if op.kind == "gated_matmul":
        return 2 * spec.matrix_cycles(op.m, op.n, op.k), 2 * op.m * op.n
    if op.kind == "attention":
        heads, q, s = op.batch * op.heads, op.q_len, op.kv_len
        blocks = spec.matrix_cycles(q, s, op.head_dim) + spec.matrix_cycles(q, op.values, s)
        return heads * blocks, heads * q * (s + op.values)
    return 0.0, 0.0


def bounds(model: Any, stored: int) -> dict[str, float]:
    """Least cycles of an optimized model, by what they are counted for; ``stored``: see :func:`measure`."""
    matrix, vector, spare = least(model)
    dram = (stored - spare) / model.target.spec.dram_bytes_per_cycle
    return {"matrix": matrix, "vector": vector, "DRAM": dram}


def row(name: str, target: str, without: bool) -> dict[str, Any]:
    """Cycles, bounds and (``without``) what features are worth, of a model on a target."""
    model = api.optimize_model(api.import_model(name), target)
    cycles, stored = measure(model)
    found = {"model": name.removeprefix("zoo:"), "target": target, "cycles": round(cycles)}
    found |= {kind: round(bound) for kind, bound in bounds(model, stored).items()}
    if without:
        single, unfused = (SingleBufferedRegion, SingleBufferedKernels), (UnfusedRegion,)
        found["without_double_buffering"] = round(measure(model, *single)[0] / cycles, 2)
        found["without_fusion"] = round(measure(model, *unfused)[0] / cycles, 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--target", action="append", help="npu:mobile, npu:datacenter, ... (both of these)")
    parser.add_argument("--without", action="store_true", help="also with features off")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows to a file")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    shown: list[list[str]] = []
    headings = ["model", "target", "cycles", "matrix", "vector", "DRAM", "x bound"]
    if options.without:
        headings += ["without double buffering", "without fusion"]
    for name in options.models:
        for target in options.target or ("npu:mobile", "npu:datacenter"):
            found = row(name, target, options.without)
            rows.append(found)
            bound = max(found[kind] for kind in ("matrix", "vector", "DRAM"))
            cells = [name, target, *(f"{found[key]:,}" for key in ("cycles", "matrix", "vector", "DRAM"))]
            cells.append(f"{found['cycles'] / bound:.3f}")
            cells += [f"{value:.2f} x" for key, value in found.items() if key.startswith("without")]
            shown.append(cells)
            if options.json:
                options.json.write_text(json.dumps({"default": rows}, indent=1) + "\n")
    columns = [Column(heading, text=heading in ("model", "target")) for heading in headings]
    printer = console()
    printer.print(table("simulated cycles", columns, shown, printer.width))


if __name__ == "__main__":
    main()
