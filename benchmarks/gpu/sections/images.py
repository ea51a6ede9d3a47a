"""Shared parts of the sections of images: layouts and PyTorch's convolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.sections.products import after
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.matmul import RESIDUAL


def plain(image: torch.Tensor, layout: str, channels: int) -> torch.Tensor:
    """Image of a layout without halo as [N, C, H, W]."""
    if not Layout.parse(layout).blocked:
        return image
    n, blocks, height, width, lanes = image.shape
    return image.permute(0, 1, 4, 2, 3).reshape(n, blocks * lanes, height, width)[:, :channels]


def in_layout(image: torch.Tensor, layout: str) -> torch.Tensor:
    """Image [N, C, H, W] in a layout, the inverse of :func:`plain`; zeros in lanes past the channels."""
    parsed = Layout.parse(layout)
    if not parsed.blocked:
        return image
    n, c, height, width = image.shape
    blocks = parsed.blocks(c)
    image = F.pad(image, (0, 0, 0, 0, 0, blocks * parsed.block - c))
    return image.reshape(n, blocks, parsed.block, height, width).permute(0, 1, 3, 4, 2).contiguous()


def _convolved(op: Conv2d, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    top, left, bottom, right = op.padding
    if (top, left) != (bottom, right):
        x, top, left = F.pad(x, (left, right, top, bottom)), 0, 0
    return F.conv2d(x, w, None, op.strides, (top, left), op.dilation, op.groups)


def _extra(op: Conv2d, extra: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Residuals as plain images."""
    steps = [step for step in op.epilogue if step in ("bias", RESIDUAL)]
    return [
        plain(tensor, op.residual_layout, op.filters) if step == RESIDUAL else tensor
        for step, tensor in zip(steps, extra, strict=True)
    ]


def compute(op: Conv2d, x: torch.Tensor, w: torch.Tensor, *extra: torch.Tensor) -> torch.Tensor:
    y = _convolved(op, plain(x, op.x_layout, op.channels), w)
    y = after(y, op.epilogue, iter(_extra(op, extra)), (1, -1, 1, 1))
    return in_layout(y, op.y_layout)


def cudnn(op: Conv2d, x: torch.Tensor, w: torch.Tensor, *extra: torch.Tensor) -> Callable[[], Any]:
    """PyTorch's convolution with everything in channels_last, the layout that cuDNN likes best."""
    torch.backends.cudnn.benchmark = True

    def last(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor

    x, w = last(plain(x, op.x_layout, op.channels)), last(w)
    more = [last(tensor) for tensor in _extra(op, extra)]
    return lambda: after(_convolved(op, x, w), op.epilogue, iter(more), (1, -1, 1, 1))
