"""The engine's design space: products with constant weights, a column block at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from fourth_target.machine import Engine
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.matmul import BIAS, Matmul
from hetero_tvm.schedules.base import DesignSpace, Knob
from hetero_tvm.schedules.emit import Kernel, constant


class FourthMatmul(DesignSpace):
    """Weights lie column by column; ``block`` columns are one step of the engine.

    Loops: rows, blocks of columns, columns of a block, k inside.
    """

    name = "fourth.matmul"

    def refuses(self, op: FusedOp, machine: Engine) -> str | None:
        if not isinstance(op, Matmul):
            return f"products only, not {op.kind}"
        return None if op.epilogue in ((), (BIAS,)) else f"no unit for {', '.join(op.epilogue)}"

    def knobs(self, op: FusedOp, machine: Engine) -> tuple[Knob, ...]:
        return (Knob("block", tuple(b for b in (1, 2, 4, 8, 16, 32) if b <= machine.width)),)

    def default(self, op: FusedOp, machine: Engine) -> dict[str, int]:
        return {"block": 1}

    def pack(self, op: FusedOp, point: Any, machine: Engine) -> dict[int, Any]:
        return {1: lambda weights_KN: np.ascontiguousarray(weights_KN.T)}

    def cost(self, op: Matmul, point: Any, machine: Engine) -> float:
        """Seconds that the engine takes for one call."""
        return op.m * -(-op.n // point["block"]) * 1e-6

    def emit(self, op: Matmul, point: Any, machine: Engine) -> Any:
        k = Kernel()
        block = point["block"]
        with k:
            x = k.argument("X", (*op.lead, op.k))
            w = k.argument("W", (op.n, op.k))
            bias = k.argument("bias", (op.n,)) if op.epilogue else None
            y = k.argument("Y", (*op.lead, op.n))
            x_MK, y_MN = k.view(x, (op.m, op.k)), k.view(y, (op.m, op.n))
            with k.serial(op.m) as row, k.serial(-(-op.n // block)) as group, k.serial(block) as column:
                n = group * block + column
                with k.when(n < op.n):
                    k.store(y_MN, constant(0.0) if bias is None else k.load(bias, [n]), [row, n])
                    with k.serial(op.k) as i:
                        product = k.load(x_MK, [row, i]) * k.load(w, [n, i])
                        k.store(y_MN, k.load(y_MN, [row, n]) + product, [row, n])
        return k.function
