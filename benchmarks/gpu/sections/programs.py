"""Shared part of the sections of generic kernels: a tensor expression beside the same in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.gpu.case import COPY, Case
from hetero_tvm.host.tvm import te
from hetero_tvm.ops.tensor_program import TensorProgram


def program_case(
    name: str,
    operands: list[tuple[tuple[int, ...], str]],
    expression: Callable[..., Any],
    in_torch: Callable[..., Any],
    goal: float = 0.85,
    bounds: dict[int, int] | None = None,
) -> Case:
    """Case of a kernel as generic fusion makes them, of one expression.

    Parameters
    ----------
    name : what it does; the shape of its first operand is added.
    operands : shapes and dtypes.
    expression, in_torch : from placeholders to the result, and the same for tensors.
    goal : least share of the bandwidth of a copy.
    bounds : see :class:`Case`.
    """
    placeholders = [te.placeholder(shape, dtype, f"x{i}") for i, (shape, dtype) in enumerate(operands)]
    function = te.create_prim_func([*placeholders, expression(*placeholders)], "int64")
    shape, dtype = operands[0]
    op = TensorProgram.of(function, f"{name}_{'x'.join(map(str, shape))}_{dtype}", 0)
    precision = "f32" if dtype == "float32" else "f16"

    def compute(op: Any, *tensors: Any) -> Any:
        return in_torch(*tensors)

    def eager(op: Any, *tensors: Any) -> Callable[[], Any]:
        return lambda: in_torch(*tensors)

    return Case(op, compute, {"torch": eager}, precision, goals={COPY: goal}, bounds=bounds or {})
