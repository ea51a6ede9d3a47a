"""Places of extremes beside the bandwidth of a copy: greedy decoding, segmentation."""

from __future__ import annotations

from benchmarks.gpu.case import Case, Section
from benchmarks.gpu.sections.programs import program_case
from hetero_tvm.host.tvm import topi


def _argmax(shape: tuple[int, ...], axis: int, dtype: str = "float32") -> Case:
    return program_case(
        f"argmax_of_{axis}", [(shape, dtype)], lambda x: topi.argmax(x, axis=axis), lambda x: x.argmax(axis)
    )


ARG_REDUCE = Section(
    "arg_reduce",
    (_argmax((4096, 50257), 1, "float16"), _argmax((8, 128256), 1), _argmax((8, 21, 512, 512), 1)),
    (_argmax((5, 300), 1), _argmax((2, 5, 3, 4), 1)),
)
