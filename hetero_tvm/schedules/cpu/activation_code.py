"""ActivationCode of an epilogue, in the best form that the CPU has."""

from __future__ import annotations

from collections.abc import Sequence

from hetero_tvm.codegen import avx512, vector_math
from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.machines.cpu import CpuModel


class ActivationCode:
    """Code of the activations of one kernel.

    Parameters
    ----------
    steps : names of the epilogue's steps; those that are no activations are ignored.
    """

    def __init__(self, steps: Sequence[str], machine: CpuModel):
        self._table = "gelu_erf" in steps and "avx512f" in machine.features and machine.lanes == 16

    @property
    def imports(self) -> tuple[str, ...]:
        """LLVM IR that :meth:`apply` needs (see :meth:`Kernel.imported`)."""
        return (avx512.gelu_erf_ir(),) if self._table else ()

    def apply(self, step: str, value: Expr, width: int) -> Expr:
        """Apply one activation to a vector of ``width`` lanes."""
        if step == "gelu_erf" and self._table and width == 16:
            return tirx.call_extern("float32x16", avx512.GELU_ERF, value)
        return vector_math.ACTIVATIONS[step](value)
