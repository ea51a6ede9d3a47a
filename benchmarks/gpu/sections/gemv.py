"""Products of a few rows: decoding a token, or a few, bound by reading the weights once."""

from __future__ import annotations

from benchmarks.gpu.case import COPY, Case, Section
from benchmarks.gpu.sections.gated_matmul import gated_case
from benchmarks.gpu.sections.products import CUBLAS, matmul
from hetero_tvm.ops.matmul import BIAS, RESIDUAL, Matmul


def _case(m: int, k: int, n: int, *epilogue: str, dtype: str = "float16") -> Case:
    precision = {"float32": "f32", "bfloat16": "bf16"}.get(dtype, "f16")
    return Case(Matmul((m,), n, k, epilogue, dtype), matmul, CUBLAS, precision, goals={COPY: 0.8})


GEMV = Section(
    "gemv",
    (
        _case(1, 4096, 4096),
        _case(1, 4096, 32000),
        _case(4, 4096, 4096),
        _case(1, 4096, 4096, dtype="float32"),
        gated_case(1, 4096, 14336),
    ),
    (
        _case(1, 72, 40, BIAS, "silu"),
        _case(3, 128, 33, BIAS, RESIDUAL),
        _case(8, 64, 64, dtype="bfloat16"),
        _case(2, 64, 48, dtype="float32"),
        gated_case(2, 64, 48),
    ),
)
