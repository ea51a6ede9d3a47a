"""Norms, with a residual or without, beside the bandwidth of a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.case import COPY, Case, Section
from hetero_tvm.ops.add_norm import AddNorm
from hetero_tvm.ops.embedding_norm import EmbeddingNorm
from hetero_tvm.ops.normalization import Normalization

_EPS = 1e-5
Normed = Normalization | AddNorm | EmbeddingNorm


def norm(op: Normed, x: torch.Tensor, scale: torch.Tensor, *shift: torch.Tensor) -> torch.Tensor:
    """Layer norm, or root-mean-square norm, over the last axis."""
    vectors = [vector.to(x.dtype) for vector in (scale, *shift)]
    if op.centered:
        return F.layer_norm(x, (op.n,), *vectors, eps=op.eps)
    result = F.rms_norm(x, (op.n,), vectors[0], op.eps)
    return result + vectors[1] if shift else result


def add_norm(
    op: AddNorm, x: torch.Tensor, r: torch.Tensor, *vectors: torch.Tensor
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Norm of a sum; with ``kept`` the sum comes first."""
    total = x + r
    y = norm(op, total, *vectors)
    return (total, y) if op.kept else y


def eager(op: Normalization, *tensors: torch.Tensor) -> Callable[[], Any]:
    return lambda: norm(op, *tensors)


def add_eager(op: AddNorm, *tensors: torch.Tensor) -> Callable[[], Any]:
    return lambda: add_norm(op, *tensors)


def _norm(rows: int, n: int, dtype: str, centered: bool = True, **more: Any) -> Case:
    op = Normalization((rows,), n, _EPS, centered, centered, dtype)
    precision = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}[dtype]
    return Case(op, norm, {"torch": eager}, precision, goals={COPY: 0.85}, **more)


def _add_norm(rows: int, n: int, centered: bool = True, kept: bool = True) -> Case:
    op = AddNorm((rows,), n, (rows, n), _EPS, centered, centered, kept)
    return Case(op, add_norm, {"torch": add_eager}, "f32", goals={COPY: 0.85})


NORMS = Section(
    "norms",
    (
        _norm(8192, 4096, "float32", first=True),
        _norm(16384, 4096, "float16", first=True),
        _norm(16384, 4096, "float16", centered=False),
        _add_norm(8192, 4096),
        _add_norm(8192, 4096, centered=False, kept=False),
    ),
    (
        _norm(5, 100, "float32"),
        _norm(7, 64, "float16"),
        _norm(3, 96, "bfloat16", centered=False),
        _add_norm(5, 64),
        _add_norm(3, 100, centered=False, kept=False),
    ),
)
