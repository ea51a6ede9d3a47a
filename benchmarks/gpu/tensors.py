"""Random operands on the GPU, hand-over between PyTorch and TVM, and how far results are off."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.gpu.case import Case
from hetero_tvm.host.tvm import DeviceTensor, tvm, tvm_ffi
from hetero_tvm.runtime.arrays import numpy_dtype
from hetero_tvm.runtime.cuda import devices as cuda_runtime

EMULATED = cuda_runtime.emulating()
DEVICE = "cpu" if EMULATED else "cuda"
L2_TIMES = 3
MOST_SETS = 32


def torch_dtype(name: str) -> torch.dtype:
    """PyTorch's dtype of that name."""
    return getattr(torch, name)


def random_inputs(case: Case, seed: int) -> list[torch.Tensor]:
    """Random operands: normal numbers, int8 over its range, other integers below their bounds."""
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    found = []
    for index, operand in enumerate(case.op.inputs):
        dtype = torch_dtype(operand.dtype)
        if dtype.is_floating_point:
            tensor = torch.randn(operand.shape, generator=generator, device=DEVICE).to(dtype)
        else:
            least = -128 if dtype == torch.int8 else 0
            most = 128 if dtype == torch.int8 else case.bounds.get(index, 2)
            tensor = torch.randint(
                least, most, operand.shape, generator=generator, device=DEVICE, dtype=torch.int64
            ).to(dtype)
        found.append(tensor)
    return found


def input_sets(case: Case, l2: int) -> list[list[torch.Tensor]]:
    """Sets of operands that together overflow the L2 cache of ``l2`` bytes, so that none is found there."""
    nbytes = max(1, sum(operand.nbytes for operand in case.op.inputs))
    count = 1 if EMULATED else max(2, min(MOST_SETS, -(-L2_TIMES * l2 // nbytes)))
    return [random_inputs(case, seed) for seed in range(count)]


def exact(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Operands in float64; integers, but for int8 factors, stay what they are."""
    wide = [t.dtype.is_floating_point or t.dtype == torch.int8 for t in tensors]
    return [tensor.double() if w else tensor for tensor, w in zip(tensors, wide, strict=True)]


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """NumPy array of a tensor, bfloat16 included."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
    return tensor.numpy()


def from_numpy(array: np.ndarray) -> torch.Tensor:
    """Tensor on :data:`DEVICE` of a NumPy array, bfloat16 included."""
    array = np.asarray(array, order="C")  # a scalar stays one
    if array.dtype == numpy_dtype("bfloat16"):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(DEVICE)
    return torch.from_numpy(array).to(DEVICE)


def to_tvm(tensor: torch.Tensor) -> DeviceTensor:
    """TVM tensor of the same memory; under emulation a copy."""
    if EMULATED:
        return tvm.runtime.tensor(to_numpy(tensor), tvm.cuda(0))
    return tvm_ffi.from_dlpack(tensor.contiguous())


def to_torch(tensor: DeviceTensor) -> torch.Tensor:
    """PyTorch's tensor of the same memory; under emulation a copy."""
    return from_numpy(tensor.numpy()) if EMULATED else torch.from_dlpack(tensor)


def blank(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Memory for a result: NaN, or a number of its own, shows what is never written."""
    kind = torch_dtype(dtype)
    return torch.full(shape, float("nan") if kind.is_floating_point else 77, dtype=kind, device=DEVICE)


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Results as a tuple, whether a model or kernel has one or several."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def largest_error(result: torch.Tensor, truth: torch.Tensor) -> float:
    """Largest error relative to the largest value; infinite when anything is missing, or not a number."""
    if tuple(result.shape) != tuple(truth.shape):
        return float("inf")
    if not result.numel():
        return 0.0
    difference = (result.double() - truth.double()).abs().max().item()
    scale = max(truth.double().abs().max().item(), 1e-30)
    return difference / scale if np.isfinite(difference) else float("inf")
