"""Which operands of a product lie on chip, in chains that stay on chip."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_tvm.ops.matmul import BIAS, RESIDUAL
from hetero_tvm.schedules.npu.tiles import round_up

Roles = frozenset[str]
"""Of operands that lie on chip: "x", "w", "residual", "y", "unit" in L1, "bias" in the unified buffer."""
NOTHING: Roles = frozenset()
UNIT = "unit"


def _names(op: Any) -> list[str]:
    """The role of every operand, and of the result."""
    return ["x", "w", *(s for s in op.epilogue if s in (BIAS, RESIDUAL)), "y"]


def on_chip(op: Any) -> frozenset[int]:
    """Indices that may lie in L1.  A residual only where it is added before anything but the bias: it
    enters through the matrix unit."""
    names = _names(op)
    steps = op.epilogue[1:] if op.epilogue[:1] == (BIAS,) else op.epilogue
    first = steps[:1] == (RESIDUAL,) and op.epilogue.count(RESIDUAL) == 1
    return frozenset(n for n, name in enumerate(names) if name != BIAS and (name != RESIDUAL or first))


def roles(op: Any, held: frozenset[int]) -> Roles:
    names = [*_names(op), "copy", UNIT]
    return frozenset(names[n] for n in held)


def steps_of(op: Any, held: Roles) -> tuple[str, ...]:
    """The epilogue in the unified buffer."""
    return tuple(step for step in op.epilogue if not (step == RESIDUAL and RESIDUAL in held))


def unit_size(spec: Any) -> int:
    """Of the unit matrix that residuals in L1 are multiplied with."""
    return round_up(max(spec.matrix_block[1:]), spec.alignment // 2)


def tables(held: Roles, machine: Any) -> list[np.ndarray]:
    from hetero_tvm.targets.npu.numbers import numpy_dtype

    return [np.eye(unit_size(machine.spec), dtype=numpy_dtype(machine.short))] if RESIDUAL in held else []
