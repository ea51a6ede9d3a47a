"""Peers on the same GPU: PyTorch's kernels for a case, copies, large products."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.gpu import tensors, timing
from benchmarks.gpu.case import Case

_LARGE = 1 << 30


def time_all(case: Case, clock: timing.Clock | None, l2: int) -> dict[str, Any]:
    """Times of each peer, or why it has none; under emulation it is only called."""
    torch.backends.cuda.matmul.allow_tf32 = case.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = case.precision == "tf32"
    sets = tensors.input_sets(case, l2)
    found: dict[str, Any] = {}
    for name, make in case.peers.items():
        try:
            calls = [make(case.op, *given) for given in sets]
            if clock is None:
                calls[0]()
                found[name] = {"seconds": None}
            else:
                found[name] = timing.measure(calls, clock).to_dict()
        except Exception as error:  # a backend that does not take this case
            text = str(error).strip().splitlines()
            found[name] = {"seconds": None, "why": f"{type(error).__name__}: {text[0] if text else ''}"[:300]}
            if clock is not None:
                torch.cuda.synchronize()
    return found


def copy_rate(nbytes: int, clock: timing.Clock | None, l2: int) -> float | None:
    """Bytes per second, read and written counted, of a plain copy that moves ``nbytes`` in all."""
    if clock is None:
        return None
    count = max(1, nbytes // 8)
    goal = torch.empty(count, device=tensors.DEVICE)
    sets = max(2, min(tensors.MOST_SETS, -(-tensors.L2_TIMES * l2 // goal.nbytes)))
    sources = [torch.randn(count, device=tensors.DEVICE) for _ in range(sets)]
    calls = [lambda source=source: goal.copy_(source) for source in sources]
    return 2 * goal.nbytes / timing.measure(calls, clock).seconds


def roofs(clock: timing.Clock | None, l2: int) -> dict[str, Any]:
    """Ceilings as measured: a copy of a gigabyte; products of 8192 x 8192 matrices by precision."""
    if clock is None:
        return {}
    result: dict[str, Any] = {
        "copy_bytes_per_second": copy_rate(2 * _LARGE, clock, l2),
        "flops_per_second": {},
    }
    kinds = {"f16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32}
    for name, dtype in kinds.items():
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        left, right = (torch.randn(8192, 8192, device=tensors.DEVICE).to(dtype) for _ in range(2))
        seconds = timing.measure([lambda a=left, b=right: a @ b], clock).seconds
        result["flops_per_second"][name] = 2 * 8192**3 / seconds
    return result
