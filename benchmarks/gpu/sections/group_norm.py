"""Group norms beside PyTorch's and the bandwidth of a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.case import COPY, Case, Section
from benchmarks.gpu.sections.products import ACTIVATIONS
from hetero_tvm.ops.group_norm import GroupNorm


def compute(op: GroupNorm, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    y = F.group_norm(x, op.groups, scale.to(x.dtype), shift.to(x.dtype), op.eps)
    return ACTIVATIONS[op.activation](y) if op.activation else y


def eager(op: GroupNorm, *tensors: torch.Tensor) -> Callable[[], Any]:
    return lambda: compute(op, *tensors)


def _case(shape: tuple[int, ...], groups: int, activation: str = "", dtype: str = "float16") -> Case:
    op = GroupNorm(shape, groups, 1e-5, activation, dtype)
    precision = "f32" if dtype == "float32" else "f16"
    return Case(op, compute, {"torch": eager}, precision, goals={COPY: 0.85})


GROUP_NORM = Section(
    "group_norm",
    (
        _case((8, 320, 64, 64), 32, "silu"),
        _case((8, 128, 128, 128), 32, "silu", "float32"),
    ),
    (_case((2, 8, 5, 6), 4, "silu"), _case((1, 12, 7, 7), 3, "", "float32")),
)
