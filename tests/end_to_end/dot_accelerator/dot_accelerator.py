"""A whole target in one file, as another package would bring it: an engine that does dot products.

It claims products with constant weights whose rows it can stream (a multiple of four elements), keeps
its weights transposed, and leaves everything else to the CPU target it is built on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hetero_tvm.ops.matmul import BIAS, Matmul
from hetero_tvm.schedules.base import DesignSpace, Knob
from hetero_tvm.schedules.driver import Driver
from hetero_tvm.schedules.emit import Kernel, int32
from hetero_tvm.targets.cpu.target import CpuTarget


class DotSpace(DesignSpace):
    """Steps 2 and 3: what the engine can do, which choices it has, how its operands lie, what a kernel is,
    and the driver that it calls."""

    name = "dot.matmul"
    driver = Driver((Path(__file__).with_name("dot_driver.cc"),), ("dot_accelerate",))

    def refuses(self, op: Any, machine: Any) -> str | None:
        if not isinstance(op, Matmul):
            return f"dot products only, not {op.kind}"
        if op.epilogue not in ((), (BIAS,)):
            return f"no unit for {', '.join(op.epilogue)}"
        return f"rows of {op.k} elements are no multiple of 4" if op.k % 4 else None

    def knobs(self, op: Any, machine: Any) -> tuple[Knob, ...]:
        return (Knob("burst", (64, 16, 256)),)

    def default(self, op: Any, machine: Any) -> dict[str, int]:
        return {"burst": 64}

    def pack(self, op: Any, point: Any, machine: Any) -> dict[int, Any]:
        return {1: lambda w: np.ascontiguousarray(w.T)}

    def emit(self, op: Any, point: Any, machine: Any) -> Any:
        k = Kernel()
        with k:
            x = k.argument("X", (*op.lead, op.k))
            w = k.argument("W", (op.n, op.k))
            bias = k.argument("bias", (op.n,)) if op.epilogue else None
            y = k.argument("Y", (*op.lead, op.n))
            start = [0] * (len(op.lead) + 1)
            k.call(
                "dot_accelerate",
                k.address(x, start),
                k.address(w, [0, 0]),
                k.address(w, [0, 0]) if bias is None else k.address(bias, [0]),
                k.address(y, start),
                *map(int32, (op.m, op.n, op.k, bias is not None, point["burst"])),
            )
        return k.function


class DotTarget(CpuTarget):
    """Step 1: the CPU's target, and the spaces that it adds."""

    kind = "dot"

    @property
    def spaces(self) -> Any:
        return (DotSpace(), *super().spaces)


def from_variant(variant: str) -> DotTarget:
    """Step 4: the factory that the package's entry point names; variants are those of the CPU beside it."""
    return DotTarget.from_variant(variant)
