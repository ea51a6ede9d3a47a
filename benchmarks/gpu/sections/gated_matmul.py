"""Gated products (SwiGLU, GeGLU) beside one cuBLAS product and PyTorch's kernels behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.case import Case, Section
from benchmarks.gpu.sections.products import ACTIVATIONS, FAMILIES
from hetero_tvm.ops.gated_matmul import GatedMatmul


def compute(op: GatedMatmul, x: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
    return _gated(op, x @ w + bias[0].to(x.dtype) if bias else x @ w)


def _gated(op: GatedMatmul, both: torch.Tensor) -> torch.Tensor:
    gate, value = both.split(op.n, -1)
    return ACTIVATIONS[op.activation](gate) * value


def cublas(op: GatedMatmul, x: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor) -> Callable[[], Any]:
    transposed, vector = w.t().contiguous(), bias[0].to(x.dtype) if bias else None
    return lambda: _gated(op, F.linear(x, transposed, vector))


def gated_case(
    m: int, k: int, n: int, activation: str = "silu", biased: bool = False, dtype: str = "float16"
) -> Case:
    op = GatedMatmul((m,), n, k, activation, biased, dtype)
    families = FAMILIES if m > 8 else {}
    return Case(op, compute, {"cublas": cublas}, "bf16" if dtype == "bfloat16" else "f16", families=families)


GATED_MATMUL = Section(
    "gated_matmul",
    (
        gated_case(4096, 4096, 14336),
        gated_case(4096, 4096, 14336, dtype="bfloat16"),
    ),
    (
        gated_case(48, 72, 64),
        gated_case(20, 64, 40, "gelu_tanh", True),
        gated_case(48, 64, 64, dtype="bfloat16"),
    ),
)
