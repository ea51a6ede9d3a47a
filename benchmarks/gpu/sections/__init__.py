"""Every section of kernels, the most telling first; a new one is one file and one entry here."""

from __future__ import annotations

from benchmarks.gpu.case import Case, Section
from benchmarks.gpu.sections.arg_reduce import ARG_REDUCE
from benchmarks.gpu.sections.attention import ATTENTION
from benchmarks.gpu.sections.batch_matmul import BATCH_MATMUL
from benchmarks.gpu.sections.conv2d import CONV2D
from benchmarks.gpu.sections.depthwise import DEPTHWISE
from benchmarks.gpu.sections.elementwise import ELEMENTWISE
from benchmarks.gpu.sections.embedding_norm import EMBEDDING_NORM
from benchmarks.gpu.sections.gated_matmul import GATED_MATMUL
from benchmarks.gpu.sections.gemv import GEMV
from benchmarks.gpu.sections.group_norm import GROUP_NORM
from benchmarks.gpu.sections.matmul import MATMUL, PRODUCTS
from benchmarks.gpu.sections.norms import NORMS
from benchmarks.gpu.sections.pool2d import POOL2D
from benchmarks.gpu.sections.reduce import REDUCE
from benchmarks.gpu.sections.softmax import SOFTMAX
from benchmarks.gpu.sections.transpose import TRANSPOSE

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
    ELEMENTWISE,
    REDUCE,
    ARG_REDUCE,
    POOL2D,
    GROUP_NORM,
    EMBEDDING_NORM,
)


def section_named(name: str) -> Section:
    """``KeyError`` when there is none of that name."""
    return {section.name: section for section in SECTIONS}[name]


def case_named(section: str, label: str, small: bool) -> Case:
    """A case of a section, of its small ones with ``small``; ``StopIteration`` when there is none."""
    found = section_named(section)
    return next(case for case in (found.small if small else found.cases) if case.label == label)
