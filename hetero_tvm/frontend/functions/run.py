"""Judge of an operator that a user wrote for TVM: the same operator, compiled by stock TVM, unscheduled."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx

from hetero_tvm.errors import ModelError, UsageError, last_line
from hetero_tvm.host.constants import tensor_of
from hetero_tvm.host.tvm import IRModule, relax, tvm
from hetero_tvm.runtime.signature import Signature


class UnscheduledProgram:
    """A module as its user wrote it, run by TVM's own lowering on the CPU.

    It has no wider numbers than the user's own: what is asked for in float64 is computed as written.
    """

    exact = available = True
    coarse = False

    def __init__(self, module: IRModule, signature: Signature):
        self._module, self._signature = module, signature
        self.engine = f"TVM {tvm.__version__}, unscheduled"

    @functools.cached_property
    def _machine(self) -> Any:
        try:
            return relax.VirtualMachine(relax.build(self._module, "llvm"), tvm.cpu())
        except Exception as error:  # TVM raises many kinds: the user's function may be anything
            raise ModelError(
                f"TVM cannot compile this function as it is: {last_line(error)}",
                hint="check it with tvm.compile first",
            ) from error

    def run(self, inputs: Mapping[str, np.ndarray], *, double: bool = False) -> tuple[np.ndarray, ...]:
        """Outputs in signature order, in their own types, floats widened to float64 for ``double``."""
        given = [tensor_of(np.ascontiguousarray(inputs[spec.name])) for spec in self._signature.inputs]
        found = self._machine["main"](*given)
        arrays = [x.numpy() for x in ([found] if hasattr(found, "numpy") else found)]
        return tuple(x.astype(np.float64) if double and x.dtype.kind == "f" else x for x in arrays)

    def tensors(self, inputs: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, np.ndarray]:
        """{}: values inside a kernel have no names that anybody else knows."""
        return {}

    def to_onnx(self) -> onnx.ModelProto:
        """Refused: TensorIR has no ONNX form."""
        raise UsageError("an operator written for TVM cannot be given to another runtime")
