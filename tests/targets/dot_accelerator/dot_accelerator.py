"""A whole target in one file, as another package would bring it: an engine that does dot products.

It claims products with constant weights whose rows it can stream (a multiple of four elements), keeps
its weights transposed, and leaves everything else to the CPU target it is built on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_tvm.ops.matmul import BIAS, Matmul
from hetero_tvm.schedules.base import DesignSpace, Knob
from hetero_tvm.schedules.cpu.emit import Kernel, int32
from hetero_tvm.targets.cpu import CpuTarget

# The "driver": what a vendor's library would do.  It is linked into every exported .so.
DRIVER = r"""
extern "C" int dot_accelerate(const float* x, const float* w, const float* bias, float* y,
                              int m, int n, int k, int biased, int burst) {
  for (int j0 = 0; j0 < n; j0 += burst)
    for (int i = 0; i < m; ++i)
      for (int j = j0; j < n && j < j0 + burst; ++j) {
        float sum = biased ? bias[j] : 0.0f;
        for (int r = 0; r < k; ++r) sum += x[(long)i * k + r] * w[(long)j * k + r];
        y[(long)i * n + j] = sum;
      }
  return 0;
}
"""


class DotSpace(DesignSpace):
    """Step 2: what the engine can do, which choices it has, how its operands lie, what a kernel is."""

    name = "dot.matmul"

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
                "dot_accelerate", k.address(x, start), k.address(w, [0, 0]),
                k.address(w, [0, 0]) if bias is None else k.address(bias, [0]), k.address(y, start),
                *map(int32, (op.m, op.n, op.k, bias is not None, point["burst"])),
            )  # fmt: skip
        return k.function


class DotTarget(CpuTarget):
    """Steps 1 and 3: the spaces it adds, and what it links in."""

    kind = "dot"

    @property
    def spaces(self) -> Any:
        return (DotSpace(), *super().spaces)

    def compile(self, module: Any) -> Any:
        import tvm

        create = tvm.get_global_func("runtime.CSourceModuleCreate")
        driver = create(DRIVER, "cc", ["dot_accelerate"], [])
        return super().compile(module.with_attr("external_mods", [driver]))


def from_variant(variant: str) -> DotTarget:
    """Step 4: the factory that the package's entry point names."""
    return DotTarget(variant or None)
