"""Kernels without reductions, gathers among them, beside the bandwidth of a copy."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.gpu.case import Case, Section
from benchmarks.gpu.sections.programs import program_case
from hetero_tvm.host.tvm import TETensor, te, topi


def _add(rows: int, n: int, dtype: str) -> Case:
    def expression(x: TETensor, bias: TETensor, y: TETensor) -> TETensor:
        return topi.add(topi.nn.relu(topi.add(x, bias)), y)

    operands = [((rows, n), dtype), ((n,), dtype), ((rows, n), dtype)]
    return program_case("bias_relu_add", operands, expression, lambda x, bias, y: F.relu(x + bias) + y)


def _cast(rows: int, n: int) -> Case:
    def in_torch(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float16) if x.dtype == torch.float32 else x  # the truth stays as precise as it is

    return program_case("to_half", [((rows, n), "float32")], lambda x: topi.cast(x, "float16"), in_torch)


def _gather(rows: int, n: int, count: int) -> Case:
    def expression(table: TETensor, indices: TETensor) -> TETensor:
        return te.compute((count, n), lambda i, j: table[indices[i], j], name="gather")

    operands = [((rows, n), "float16"), ((count,), "int64")]
    return program_case("gather", operands, expression, lambda t, i: t[i], goal=0.5, bounds={1: rows})


def _heads(batch: int, length: int, heads: int, dim: int) -> Case:
    """A permutation that keeps the last axis: vectors are moved as they are."""

    def expression(x: TETensor) -> TETensor:
        return topi.transpose(x, [0, 2, 1, 3])

    operands = [((batch, length, heads, dim), "float16")]
    return program_case("swap_heads", operands, expression, lambda x: x.transpose(1, 2).contiguous())


ELEMENTWISE = Section(
    "elementwise",
    (
        _add(16384, 4096, "float16"),
        _cast(16384, 4096),
        _gather(128256, 4096, 16384),
        _heads(8, 2048, 32, 128),
    ),
    (_add(5, 36, "float16"), _add(7, 37, "float32"), _cast(6, 40), _gather(50, 64, 28), _heads(2, 3, 4, 16)),
)
