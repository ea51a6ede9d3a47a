"""Shared parts of the sections of products: epilogues in PyTorch, and kinds of tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from hetero_tvm.ops.matmul import BIAS, RESIDUAL, Matmul
from hetero_tvm.schedules.cuda.products.tiles import Tile

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "gelu_erf": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}


def warp_group(point: Mapping[str, Any]) -> bool:
    return Tile.of(tuple(point["tile"])).group


FAMILIES = {"wgmma": warp_group, "mma": lambda point: not warp_group(point)}
"""Predicates that tell the two ways to the tensor cores of sm_90a apart."""


def after(
    y: torch.Tensor, epilogue: tuple[str, ...], extra: Iterator[torch.Tensor], channel: tuple[int, ...] = ()
) -> torch.Tensor:
    """Apply the steps of an epilogue; ``channel`` is the shape that a bias is given."""
    for step in epilogue:
        if step == BIAS:
            bias = next(extra).to(y.dtype)
            y = y + (bias.reshape(channel) if channel else bias)
        elif step == RESIDUAL:
            y = y + next(extra)
        else:
            y = ACTIVATIONS[step](y)
    return y


def matmul(op: Matmul, x: torch.Tensor, w: torch.Tensor, *extra: torch.Tensor) -> torch.Tensor:
    return after(x @ w, op.epilogue, iter(extra))


def cublas(op: Matmul, x: torch.Tensor, w: torch.Tensor, *extra: torch.Tensor) -> Callable[[], Any]:
    """``torch.matmul``, and the epilogue as PyTorch's kernels behind it."""
    return lambda: matmul(op, x, w, *extra)


def cublas_linear(op: Matmul, x: torch.Tensor, w: torch.Tensor, *extra: torch.Tensor) -> Callable[[], Any]:
    """``torch.nn.functional.linear``: the weights transposed, as modules keep them; the bias inside."""
    transposed = w.t().contiguous()
    rows = x.reshape(math.prod(op.lead), op.k)
    if op.epilogue[:1] == (BIAS,):
        bias, rest = extra[0].to(x.dtype), extra[1:]
        return lambda: after(
            F.linear(rows, transposed, bias).reshape(op.output.shape), op.epilogue[1:], iter(rest)
        )
    return lambda: after(F.linear(rows, transposed).reshape(op.output.shape), op.epilogue, iter(extra))


CUBLAS = {"cublas": cublas, "cublas_linear": cublas_linear}
