"""Products beside cuBLAS: the size that everybody quotes, and those of Transformers in other precisions."""

from __future__ import annotations

from benchmarks.gpu.case import Case, Section
from benchmarks.gpu.sections.products import CUBLAS, FAMILIES, matmul
from hetero_tvm.ops.matmul import BIAS, RESIDUAL, Matmul

_DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "tf32": "float32"}


def _case(
    lead: int | tuple[int, ...], k: int, n: int, *epilogue: str, precision: str = "f16", **more
) -> Case:
    op = Matmul((lead,) if isinstance(lead, int) else lead, n, k, epilogue, _DTYPES[precision])
    families = FAMILIES if precision != "f32" else {}
    return Case(op, matmul, CUBLAS, precision, families=families, **more)


_GOAL = {"goals": {"cublas": 0.8, "cublas_linear": 0.8}}
_BERT = (8, 512)
"""Rows as bert-base and gpt2 have them: their kernels find the records of these."""

MATMUL = Section(
    "matmul",
    (
        _case(4096, 4096, 4096, **_GOAL, trials=1.0, first=True),
        _case(_BERT, 768, 2304, BIAS),
        _case(_BERT, 768, 768, BIAS, RESIDUAL),
        _case(_BERT, 768, 3072, BIAS, "gelu_erf"),
        _case(_BERT, 3072, 768, BIAS, RESIDUAL),
    ),
    tuple(_case(48, 72, 96, BIAS, "gelu_erf", RESIDUAL, precision=precision) for precision in _DTYPES),
)

PRODUCTS = Section(
    "products",
    (
        _case(4096, 4096, 4096, precision="bf16", **_GOAL),
        _case(4096, 4096, 4096, precision="tf32"),
        _case(4096, 4096, 4096, precision="f32"),
        _case(8192, 8192, 8192),
        _case(_BERT, 768, 50257),
        _case(64, 4096, 4096),
        _case(16, 4096, 4096),
    ),
    (_case(16, 256, 64), _case(33, 40, 24, "gelu_tanh")),
)
