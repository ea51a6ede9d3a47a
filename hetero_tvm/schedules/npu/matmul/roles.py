"""Roles of a product's operands, by which chains say what stays on chip."""

from __future__ import annotations

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.matmul import BIAS, RESIDUAL, Matmul

Roles = frozenset[str]
"""Roles of operands that lie on chip: "x", "w", "residual", "y", "copy" in L1, "bias" in the unified
buffer."""
NOTHING: Roles = frozenset()


def _names(op: Matmul | Conv2d) -> list[str]:
    """The role of every operand, and of the result."""
    return ["x", "w", *(s for s in op.epilogue if s in (BIAS, RESIDUAL)), "y"]


def on_chip(op: Matmul | Conv2d) -> frozenset[int]:
    """Indices of operands that may lie in L1.

    A residual may where it is added before anything but the bias: on the way out of the accumulators.
    """
    names = _names(op)
    steps = op.epilogue[1:] if op.epilogue[:1] == (BIAS,) else op.epilogue
    first = steps[:1] == (RESIDUAL,) and op.epilogue.count(RESIDUAL) == 1
    return frozenset(n for n, name in enumerate(names) if name != BIAS and (name != RESIDUAL or first))


def roles(op: Matmul | Conv2d, held: frozenset[int]) -> Roles:
    """Roles of the operands with these indices."""
    names = [*_names(op), "copy"]
    return frozenset(names[n] for n in held)
