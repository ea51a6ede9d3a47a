"""Every section of kernels, the most telling first; a new one is one file and one entry here."""

from __future__ import annotations

from hetero_tvm.benchmarking.gpu.case import Section
from hetero_tvm.benchmarking.gpu.sections.arg_reduce import ARG_REDUCE
from hetero_tvm.benchmarking.gpu.sections.attention import ATTENTION
from hetero_tvm.benchmarking.gpu.sections.batch_matmul import BATCH_MATMUL
from hetero_tvm.benchmarking.gpu.sections.conv2d import CONV2D
from hetero_tvm.benchmarking.gpu.sections.depthwise import DEPTHWISE
from hetero_tvm.benchmarking.gpu.sections.embedding_norm import EMBEDDING_NORM
from hetero_tvm.benchmarking.gpu.sections.gated_matmul import GATED_MATMUL
from hetero_tvm.benchmarking.gpu.sections.gemv import GEMV
from hetero_tvm.benchmarking.gpu.sections.group_norm import GROUP_NORM
from hetero_tvm.benchmarking.gpu.sections.matmul import MATMUL, PRODUCTS
from hetero_tvm.benchmarking.gpu.sections.norms import NORMS
from hetero_tvm.benchmarking.gpu.sections.pointwise import POINTWISE
from hetero_tvm.benchmarking.gpu.sections.pool2d import POOL2D
from hetero_tvm.benchmarking.gpu.sections.reduce import REDUCE
from hetero_tvm.benchmarking.gpu.sections.softmax import SOFTMAX
from hetero_tvm.benchmarking.gpu.sections.transpose import TRANSPOSE

SECTIONS: tuple[Section, ...] = (
    MATMUL,
    ATTENTION,
    SOFTMAX,
    NORMS,
    GEMV,
    CONV2D,
    PRODUCTS,
    GATED_MATMUL,
    BATCH_MATMUL,
    DEPTHWISE,
    TRANSPOSE,
    POINTWISE,
    REDUCE,
    ARG_REDUCE,
    POOL2D,
    GROUP_NORM,
    EMBEDDING_NORM,
)


def section_named(name: str) -> Section:
    """``KeyError`` when there is none of that name."""
    return {section.name: section for section in SECTIONS}[name]
