"""Depthwise convolutions beside cuDNN: layers of MobileNetV2 at batch 8."""

from __future__ import annotations

from benchmarks.gpu.case import Case, Section
from benchmarks.gpu.sections.images import compute, cudnn
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import PLAIN
from hetero_tvm.ops.matmul import BIAS


def _case(
    batch: int,
    channels: int,
    size: int,
    kernel: int,
    stride: int,
    dtype: str = "float16",
    layout: str = "NCHW8c",
) -> Case:
    window = ((kernel, kernel), (stride, stride), (kernel // 2,) * 4)
    layouts = {"x_layout": layout, "y_layout": layout, "residual_layout": layout}
    more = {"groups": channels, "epilogue": (BIAS, "relu6"), "dtype": dtype}
    op = Conv2d(batch, channels, size, size, channels, *window, **more, **layouts)
    return Case(op, compute, {"cudnn": cudnn}, "f32" if dtype == "float32" else "f16")


DEPTHWISE = Section(
    "depthwise",
    (_case(8, 96, 112, 3, 2), _case(8, 144, 56, 3, 1), _case(8, 240, 28, 5, 2)),
    (_case(1, 24, 9, 3, 1), _case(1, 6, 9, 5, 2, "float32", PLAIN)),
)
