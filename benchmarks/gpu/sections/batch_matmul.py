"""Products of computed tensors, int8 among them, beside cuBLAS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.case import Case, Section
from benchmarks.gpu.sections.products import FAMILIES
from hetero_tvm.ops.batch_matmul import BatchMatmul

_PRECISIONS = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "int8": "f16"}


def _factors(op: BatchMatmul, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    def view(tensor: torch.Tensor, place: tuple[int, ...], rows: int, columns: int) -> torch.Tensor:
        return tensor.reshape(-1).as_strided((*op.lead, rows, columns), place[1:], place[0])

    return view(a, op.left_at, op.m, op.k), view(b, op.right_at, op.k, op.n)


def compute(op: BatchMatmul, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    left, right = _factors(op, a, b)
    return (left @ right).permute(op.order).contiguous()


def cublas(op: BatchMatmul, a: torch.Tensor, b: torch.Tensor) -> Callable[[], Any]:
    left, right = _factors(op, a, b)
    if a.dtype == torch.int8:  # the one integer product that PyTorch offers
        left, right = left.reshape(op.m, op.k), right.reshape(op.k, op.n)
        return lambda: torch._int_mm(left, right)
    return lambda: left @ right


def _case(batch: int, m: int, k: int, n: int, transposed: bool, dtype: str = "float16", **more) -> Case:
    right = (batch, n, k) if transposed else (batch, k, n)
    right_at = (0, k * n, 1, k) if transposed else (0, k * n, n, 1)
    op = BatchMatmul((batch,), m, n, k, (batch, m, k), (0, m * k, k, 1), right, right_at, (0, 1, 2), dtype)
    families = FAMILIES if dtype != "float32" else {}
    return Case(op, compute, {"cublas": cublas}, _PRECISIONS[dtype], families=families, **more)


BATCH_MATMUL = Section(
    "batch_matmul",
    (
        _case(1, 4096, 4096, 4096, True, "int8"),
        _case(96, 512, 64, 512, True),
        _case(96, 512, 512, 64, False),
        _case(16, 1024, 1024, 1024, False, "bfloat16"),
    ),
    (
        _case(3, 40, 64, 48, True),
        _case(3, 40, 48, 72, False),
        _case(1, 48, 64, 40, True, "int8"),
        _case(2, 33, 32, 32, False, "bfloat16"),
        _case(2, 33, 32, 32, True, "float32"),
    ),
)
