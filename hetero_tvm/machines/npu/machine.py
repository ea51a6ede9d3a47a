"""The NPU and its host as design spaces see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.machines.npu.numbers import NAMES, numpy_dtype
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.machines.roofs import Roofs

ISA_VERSION = 2
"""Version of the instruction set: part of every command stream, and of the key of every record."""


@dataclass(frozen=True)
class NpuMachine:
    """The NPU, the type in which it keeps activations and weights, and the host beside it.

    Parameters
    ----------
    spec : sizes and rates of the NPU.
    dtype : float16 or bfloat16; accumulators and statistics are float32.
    host : the CPU as its own design spaces see it.
    """

    spec: NPUSpec
    dtype: str
    host: CpuModel

    @property
    def short(self) -> str:
        """Name of ``dtype`` in the instruction set."""
        return NAMES[self.dtype]

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """``dtype`` as NumPy's: what packed constants are stored in."""
        return numpy_dtype(self.short)

    variant = ""
    sorted_choices = False
    whole_models = True
    """Kernels overlap: records are of whole models (see ``records.choose``)."""

    # What keys records (see ``records.record.Site``): cycles are the same on every host.
    @property
    def mcpu(self) -> str:
        """Name of the NPU's spec."""
        return self.spec.name

    @property
    def features(self) -> tuple[str, ...]:
        """The dtype, the version of the instruction set, and every value of the spec."""
        return (self.dtype, f"isa{ISA_VERSION}", *self.spec.to_config().splitlines())

    @property
    def lanes(self) -> int:
        return self.spec.vector_lanes

    @property
    def threads(self) -> int:
        return 1

    def codegen_target(self) -> dict[str, Any]:
        """Configuration of the host's code; the search wants one, and no code is generated for it."""
        return self.host.codegen_target()

    def roofs(self) -> Roofs:
        """Peaks of the matrix unit and of DRAM, with which reports compare.  Tasks count float32 bytes, of
        which half cross, so DRAM counts twice."""
        clock = self.spec.clock_ghz
        return Roofs(2.0 * self.spec.macs_per_cycle() * clock, 2.0 * self.spec.dram_bytes_per_cycle * clock)

    def to_json(self) -> dict[str, Any]:
        """The spec, the dtype and the host."""
        return {"spec": self.spec.to_json(), "dtype": self.dtype, "host": self.host.to_json()}
