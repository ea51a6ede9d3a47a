"""Operator that is known by its TensorIR alone: the result of generic fusion of Relax's own operators."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc


@dataclass(frozen=True)
class TensorProgram(FusedOp):
    """The computation of an unscheduled PrimFunc with one result.

    Parameters
    ----------
    ir : the PrimFunc as TVM's JSON.
    name : label of tasks and kernels.
    work : number of floating-point operations of one call.

    Operands: the function's parameters but the last, which is the result.
    """

    kind: ClassVar[str] = "tensor_program"

    ir: str
    name: str
    work: int

    @classmethod
    def of(cls, function: PrimFunc, name: str, work: int) -> TensorProgram:
        """Wrap a PrimFunc."""
        from hetero_tvm.host.tvm import tvm

        return cls(tvm.ir.save_json(function), name, work)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return _operands(self.ir)[:-1]

    @property
    def output(self) -> Operand:
        return _operands(self.ir)[-1]

    @property
    def flops(self) -> int:
        return self.work

    @property
    def label(self) -> str:
        return self.name

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        """Run the function itself, compiled for this machine without a schedule (in its own dtypes)."""
        from hetero_tvm.host.tvm import tvm

        module = tvm.IRModule({"main": self.workload().with_attr("global_symbol", "main")})
        compiled = tvm.compile(module, target="llvm")
        operands = [
            tvm.runtime.tensor(np.array(a, o.dtype, order="C"))
            for a, o in zip(arrays, self.inputs, strict=True)
        ]
        result = tvm.runtime.tensor(np.zeros(self.output.shape, self.output.dtype))
        compiled["main"](*operands, result)
        return result.numpy()

    def workload(self) -> PrimFunc:
        return _function(self.ir)


@functools.lru_cache(maxsize=256)
def _function(ir: str) -> PrimFunc:
    from hetero_tvm.host.tvm import tvm

    return tvm.ir.load_json(ir)


@functools.lru_cache(maxsize=256)
def _operands(ir: str) -> tuple[Operand, ...]:
    return tuple(
        Operand(f"T{n}", tuple(int(e) for e in buffer.shape), str(buffer.dtype))
        for n, buffer in enumerate(_function(ir).params)
    )
