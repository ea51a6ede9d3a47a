"""Embeddings with their norm beside PyTorch's kernels one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.case import COPY, Case, Section
from benchmarks.gpu.sections.norms import norm
from hetero_tvm.ops.embedding_norm import EmbeddingNorm, Lookup


def compute(op: EmbeddingNorm, *tensors: torch.Tensor) -> torch.Tensor:
    count = 2 * len(op.lookups)
    rest = list(tensors[count:])
    total = rest.pop(0) if op.added else 0
    for lookup, indices, table in zip(op.lookups, tensors[:count:2], tensors[1:count:2], strict=True):
        total = total + lookup.factor * table[indices % lookup.rows]
    return norm(op, total.expand(*op.lead, op.n), *rest)


def eager(op: EmbeddingNorm, *tensors: torch.Tensor) -> Callable[[], Any]:
    return lambda: compute(op, *tensors)


def _case(lead: tuple[int, int], n: int, tables: tuple[int, ...], dtype: str = "float16") -> Case:
    lookups = tuple(Lookup(rows, lead) for rows in tables)
    op = EmbeddingNorm(lead, n, lookups, (1, lead[1], n), 1e-5, dtype=dtype)
    precision = "f32" if dtype == "float32" else "f16"
    bounds = {2 * index: rows for index, rows in enumerate(tables)}
    return Case(op, compute, {"torch": eager}, precision, goals={COPY: 0.5}, bounds=bounds)


EMBEDDING_NORM = Section(
    "embedding_norm",
    (
        _case((8, 512), 768, (30522, 2)),
        _case((64, 512), 768, (30522, 2)),
    ),
    (_case((2, 6), 48, (20, 2)), _case((1, 5), 33, (9,), "float32")),
)
