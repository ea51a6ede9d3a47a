"""Operators that the design spaces of every target serve, for tests that sweep all spaces."""

from __future__ import annotations

import dataclasses
import functools

from benchmarks.search_cases import cases
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.targets.cpu.spaces import CPU_SPACES
from hetero_tvm.targets.registry import parse_target

CPU = CpuModel("test", lanes=16, registers=32, threads=2, l1=48 << 10, l2=1 << 20)
TILES = dataclasses.replace(
    CPU,
    mcpu="test-tiles",
    features=("amx_bf16", "amx_int8", "amx_tile", "avx512_bf16", "avx512_vnni", "avx512bw"),
)
"""A CPU whose matrix unit products of few bits run on."""
ON_TILES = (
    "cpu.bf16_matmul",
    "cpu.bf16_attention",
    "cpu.bf16_conv2d",
    "cpu.dynamic_matmul",
    "cpu.dynamic_gated_matmul",
    "cpu.quant_conv2d",
)
TARGETS = ("cuda:sm_80", "cuda:sm_90", "npu:mobile")


def cpu():
    """(space, operator, machine) for every space of the CPU."""
    spaces = {space.name: space for space in CPU_SPACES}
    plain = [(spaces[name], op, CPU) for name, ops in cases(CPU).items() for op in ops]
    tiles = cases(TILES)
    return plain + [(spaces[name], op, TILES) for name in ON_TILES for op in tiles[name]]


@functools.lru_cache
def others():
    """(space, operator, machine) for the spaces of GPUs and NPUs that take operators of a contract."""
    found = []
    # The NPU's estimate of integers is not that of its default.
    integers = ("cpu.quant_matmul", "cpu.quant_conv2d")
    pool = [op for name, ops in cases(CPU).items() if name not in integers for op in ops[:2]]
    for name in TARGETS:
        target = parse_target(name)
        dtypes = dict.fromkeys([target.graph_dtype, "float32", "float16"])
        for space in target.spaces:
            if ".tensor_program." in type(space).__module__ or space.name.startswith("cpu."):
                continue  # they take what carries no contract; those of this machine's CPU are in cpu()
            served = []
            for op in pool:
                for dtype in dtypes:
                    served += [one for one in _forms(op, dtype) if _serves(space, one, target.machine)]
            found += [(space, op, target.machine) for op in served[:3]]
    return found


def _forms(op, dtype):
    fields = {field.name for field in dataclasses.fields(op)}
    if "dtype" in fields:
        op = dataclasses.replace(op, dtype=dtype)
    if "x_layout" in fields:
        for layout in ("NCHW", "NCHW8c", "NCHW16c", "NCHW32c"):
            forms = {"x_layout": layout, "y_layout": layout}
            if "residual_layout" in fields:
                forms["residual_layout"] = layout
            yield dataclasses.replace(op, **forms)
    yield op


def _serves(space, op, machine):
    try:
        return space.refuses(op, machine) is None
    except Exception:  # some spaces read the workload of whatever they are asked about
        return False
