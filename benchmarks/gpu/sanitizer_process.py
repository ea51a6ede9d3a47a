"""The process that :mod:`.sanitizer` watches: launches each kernel of a list once.

Operands come from the CPU: PyTorch's own kernels would only be watched as well.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import monotonic

import torch

from benchmarks.gpu import tensors
from benchmarks.gpu.kernels import Kernel
from benchmarks.gpu.sanitizer import MARK
from benchmarks.gpu.sections import case_named
from hetero_tvm.host.tvm import DeviceTensor, tvm
from hetero_tvm.runtime.cuda import devices as cuda_runtime
from hetero_tvm.targets.registry import parse_target


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    end = monotonic() + request["seconds"]
    tensors.DEVICE = "cpu"
    if not tensors.EMULATED:
        cuda_runtime.start()
    target = parse_target(f"cuda:{request['arch']}")
    for one in request["kernels"]:
        if monotonic() > end:
            break
        print(f"{MARK}{one['name']}", flush=True)
        case = case_named(one["section"], one["label"], small=True)
        launch(Kernel(case, case.target(target), one["point"], one["library"]))


def launch(kernel: Kernel) -> None:
    """Launch a kernel once on random operands, and wait for it."""
    operands = map(_on_gpu, kernel.packed(tensors.random_inputs(kernel.case, 0)))
    kernel.function(*operands, *map(_on_gpu, kernel.blanks()))
    tvm.cuda(0).sync()


def _on_gpu(tensor: torch.Tensor) -> DeviceTensor:
    return tvm.runtime.tensor(tensors.to_numpy(tensor), tvm.cuda(0))


if __name__ == "__main__":
    main()
