"""Static checks of a model's machine code: limits of multiprocessors, spills, missing instructions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hetero_tvm.machines.gpu import GpuModel, model_named
from hetero_tvm.schedules.task import symbol
from hetero_tvm.targets.cuda import kernel_facts
from hetero_tvm.targets.cuda.codegen import DeviceModule
from hetero_tvm.targets.cuda.toolchain import Toolchain

_REGISTERS, _THREADS = 65536, 1024  # of a block
_ENTRY = re.compile(r"^\.visible \.entry (\w+)\(", re.MULTILINE)

COPIES = ("cp.async",)
"""Instructions in the PTX of a product of float32."""
TENSOR_CORES = (*COPIES, "ldmatrix", "mma.sync")
"""Instructions in the PTX of a product of half precision."""
_TILED = ("cuda.matmul", "cuda.gated_matmul", "cuda.batch_matmul", "cuda.conv2d")


def problems(built: Any, modules: Sequence[DeviceModule], tools: Toolchain) -> list[str]:
    """Faults of the machine code of a built model; empty when there are none.

    Parameters
    ----------
    built : a :class:`hetero_tvm.compile.build.BuiltModel` for GPUs.
    modules : its device modules (see :func:`.codegen.collect`).
    tools : the compiler, which gives their PTX.
    """
    found = []
    for module in modules:
        model = model_named(module.arch)
        known = kernel_facts.of_module(module)
        found += [f"{module.arch} {name}: {text}" for name, text in _beyond(known, model)]
        ptx = bodies(tools.ptx(module.source, module.arch))
        for task in built.optimized.tasks:
            wanted = _instructions(task)
            # The second kernel of a split reduction only adds: the first one multiplies.  TVM numbers names
            # that are taken already.
            pattern = rf"{symbol(task.name)}\d*(_{module.arch})?\d*_kernel"
            first = [name for name in ptx if re.fullmatch(pattern, name)]
            if wanted and not first:
                found.append(f"{module.arch} {task.name}: there is no such kernel")
            for name in first:
                missing = [text for text in wanted if text not in ptx[name]]
                if missing:
                    found.append(f"{module.arch} {name}: no {', '.join(missing)} in its PTX")
    return found


def _beyond(known: Mapping[str, dict[str, Any]], model: GpuModel) -> list[tuple[str, str]]:
    """Kernels that spill or that no multiprocessor of the model can hold."""
    found = []
    for name, kernel in known.items():
        if kernel["stack"]:
            found.append((name, f"{kernel['stack']} bytes of stack"))
        threads = kernel["threads"]
        if threads is not None and (threads > _THREADS or threads * kernel["registers"] > _REGISTERS):
            found.append((name, f"{threads} threads of {kernel['registers']} registers"))
        if kernel["shared"] > model.shared_per_block:
            found.append((name, f"{kernel['shared']} bytes of shared memory"))
    return found


def _instructions(task: Any) -> tuple[str, ...]:
    if task.space is None or task.space.name not in _TILED:
        return ()
    return TENSOR_CORES if getattr(task.op, "dtype", "float32") in ("float16", "bfloat16") else COPIES


def bodies(ptx: str) -> dict[str, str]:
    """The PTX of each kernel."""
    starts = list(_ENTRY.finditer(ptx))
    ends = [match.start() for match in starts[1:]] + [len(ptx)]
    return {match.group(1): ptx[match.start() : end] for match, end in zip(starts, ends, strict=True)}
