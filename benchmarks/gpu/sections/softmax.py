"""Softmax beside the bandwidth of a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.case import COPY, Case, Section
from hetero_tvm.ops.softmax import Softmax


def compute(op: Softmax, x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def eager(op: Softmax, x: torch.Tensor) -> Callable[[], Any]:
    return lambda: torch.softmax(x, -1)


def _case(rows: int, n: int, dtype: str, first: bool = False) -> Case:
    precision = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}[dtype]
    return Case(
        Softmax((rows,), n, dtype), compute, {"torch": eager}, precision, goals={COPY: 0.85}, first=first
    )


SOFTMAX = Section(
    "softmax",
    (
        _case(8192, 4096, "float32", first=True),
        _case(16384, 4096, "float16", first=True),
        _case(64, 128256, "float32"),
    ),
    (_case(5, 100, "float32"), _case(7, 64, "float16"), _case(3, 9000, "float32"), _case(4, 48, "bfloat16")),
)
