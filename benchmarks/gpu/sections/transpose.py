"""Transposes beside the bandwidth of a copy."""

from __future__ import annotations

import torch

from benchmarks.gpu.case import Case, Section
from benchmarks.gpu.sections.programs import program_case
from hetero_tvm.host.tvm import topi


def _case(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str = "float16") -> Case:
    def in_torch(x: torch.Tensor) -> torch.Tensor:
        return x.permute(axes).contiguous()

    return program_case("transpose", [(shape, dtype)], lambda x: topi.transpose(x, axes), in_torch)


TRANSPOSE = Section(
    "transpose",
    (
        _case((8192, 8192), (1, 0)),
        _case((64, 512, 768), (0, 2, 1)),
        _case((8, 56, 56, 256), (0, 3, 1, 2)),
    ),
    (_case((45, 36), (1, 0)), _case((2, 3, 40, 33), (0, 1, 3, 2), "float32"), _case((3, 64, 32), (0, 2, 1))),
)
