"""Convolutions beside cuDNN: the layers of ResNet-50 at batch 8."""

from __future__ import annotations

from benchmarks.gpu.case import Case, Section
from benchmarks.gpu.sections.images import compute, cudnn
from benchmarks.gpu.sections.products import FAMILIES
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import PLAIN
from hetero_tvm.ops.matmul import BIAS, RESIDUAL

_BLOCKED = "NCHW8c"
_PRECISIONS = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}


def _case(
    batch: int,
    channels: int,
    size: int,
    filters: int,
    kernel: int,
    stride: int,
    *epilogue: str,
    dtype: str = "float16",
    x_layout: str = _BLOCKED,
    layout: str = _BLOCKED,
    groups: int = 1,
) -> Case:
    window = ((kernel, kernel), (stride, stride), (kernel // 2,) * 4)
    layouts = {"x_layout": x_layout, "y_layout": layout, "residual_layout": layout}
    more = {"groups": groups, "epilogue": epilogue, "dtype": dtype}
    op = Conv2d(batch, channels, size, size, filters, *window, **more, **layouts)
    families = FAMILIES if dtype != "float32" else {}
    return Case(op, compute, {"cudnn": cudnn}, _PRECISIONS[dtype], families=families)


CONV2D = Section(
    "conv2d",
    (
        _case(8, 64, 56, 64, 3, 1, BIAS, "relu"),
        _case(8, 128, 28, 128, 3, 1, BIAS, "relu"),
        _case(8, 512, 7, 512, 3, 1, BIAS, "relu"),
        _case(8, 64, 56, 256, 1, 1, BIAS, RESIDUAL, "relu"),
        _case(8, 3, 224, 64, 7, 2, BIAS, "relu", x_layout=PLAIN),
    ),
    (
        _case(1, 16, 9, 24, 3, 1, BIAS, RESIDUAL, "relu"),
        _case(1, 3, 11, 16, 3, 2, BIAS, x_layout=PLAIN),
        _case(2, 32, 6, 32, 3, 1, groups=2),
        _case(1, 16, 9, 24, 1, 1, dtype="bfloat16"),
        _case(1, 8, 9, 12, 3, 1, BIAS, dtype="float32", x_layout=PLAIN, layout=PLAIN),
    ),
)
