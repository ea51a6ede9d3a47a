"""Reductions along rows, columns and everything beside the bandwidth of a copy."""

from __future__ import annotations

from benchmarks.gpu.case import Case, Section
from benchmarks.gpu.sections.programs import program_case
from hetero_tvm.host.tvm import TETensor, topi


def _sum(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str = "float32") -> Case:
    """Sum of squares: nothing cancels, so that errors relative to the result mean something."""
    name = "squares_over_" + "_".join(map(str, axes))

    def expression(x: TETensor) -> TETensor:
        return topi.sum(topi.multiply(x, x), axis=list(axes))

    return program_case(name, [(shape, dtype)], expression, lambda x: (x * x).sum(axes))


def _max(shape: tuple[int, ...], axis: int, dtype: str = "float16") -> Case:
    return program_case(
        f"max_of_{axis}", [(shape, dtype)], lambda x: topi.max(x, axis=axis), lambda x: x.amax(axis)
    )


REDUCE = Section(
    "reduce",
    (
        _sum((16384, 4096), (1,)),
        _sum((16384, 4096), (0,)),
        _sum((1 << 26,), (0,)),
        _max((16384, 8192), 1),
    ),
    (
        _sum((5, 136), (1,)),
        _sum((7, 37), (0,)),
        _sum((3000,), (0,)),
        _max((6, 50), 1),
        _sum((2, 3, 4, 5), (2, 3)),
    ),
)
