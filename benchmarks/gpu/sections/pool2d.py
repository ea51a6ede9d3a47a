"""Pooling beside PyTorch's and the bandwidth of a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.case import COPY, Case, Section
from benchmarks.gpu.sections.images import in_layout, plain
from hetero_tvm.ops.layout import PLAIN
from hetero_tvm.ops.pool2d import AVERAGE, MAX, Pool2d


def _pooled(op: Pool2d, x: torch.Tensor) -> torch.Tensor:
    """Pool with padding that is alike on opposite sides and counts in no mean."""
    if op.mode == MAX:
        return F.max_pool2d(x, op.kernel, op.strides, op.padding[:2])
    return F.avg_pool2d(x, op.kernel, op.strides, op.padding[:2], count_include_pad=False)


def compute(op: Pool2d, x: torch.Tensor) -> torch.Tensor:
    return in_layout(_pooled(op, plain(x, op.x_layout, op.channels)), op.y_layout)


def eager(op: Pool2d, x: torch.Tensor) -> Callable[[], Any]:
    image = plain(x, op.x_layout, op.channels).contiguous(memory_format=torch.channels_last)
    return lambda: _pooled(op, image)


def _case(
    batch: int,
    channels: int,
    size: int,
    kernel: int,
    stride: int,
    mode: str,
    dtype: str = "float16",
    layout: str = "NCHW8c",
) -> Case:
    pad = 0 if kernel == size else kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1
    window = ((kernel, kernel), (stride, stride), (pad,) * 4, (out, out))
    layouts = {"x_layout": layout, "y_layout": layout}
    op = Pool2d(batch, channels, size, size, *window, mode, dtype=dtype, **layouts)
    precision = "f32" if dtype == "float32" else "f16"
    return Case(op, compute, {"torch": eager}, precision, goals={COPY: 0.7})


POOL2D = Section(
    "pool2d",
    (
        _case(32, 64, 112, 3, 2, MAX),
        _case(32, 256, 56, 3, 1, AVERAGE),
        _case(32, 2048, 7, 7, 1, AVERAGE),
        _case(32, 64, 112, 3, 2, MAX, "float32", PLAIN),
    ),
    (
        _case(1, 16, 9, 3, 2, MAX),
        _case(2, 24, 7, 7, 1, AVERAGE),
        _case(1, 5, 9, 3, 1, AVERAGE, "float32", PLAIN),
    ),
)
