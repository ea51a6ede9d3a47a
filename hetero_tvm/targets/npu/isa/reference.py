"""The machine in NumPy, one instruction after the other: the meaning of a stream, without time.

Slow and simple on purpose; the simulator is checked against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import DTypeLike

from hetero_tvm.machines.npu.spec import SCRATCHPADS, NPUSpec
from hetero_tvm.targets.npu.isa.encoding import Instruction, Numbers, Values


class Machine:
    """Scratchpads and DRAM slots as arrays of bytes (:class:`Memories`)."""

    def __init__(self, spec: NPUSpec, slots: Sequence[np.ndarray] = ()):
        self.memory = {name: np.zeros(spec.scratchpad(name), np.uint8) for name in SCRATCHPADS}
        self.slots = [np.ascontiguousarray(slot).view(np.uint8).reshape(-1) for slot in slots]

    def read(
        self,
        memory: str,
        slot: int,
        base: int,
        extents: Sequence[int],
        strides: Sequence[int],
        dtype: DTypeLike,
    ) -> np.ndarray:
        """A copy of a strided region (strides in bytes)."""
        return self._view(memory, slot, base, extents, strides, np.dtype(dtype)).copy()

    def write(self, memory: str, slot: int, base: int, strides: Numbers, values: np.ndarray) -> None:
        view = self._view(memory, slot, base, values.shape, strides, values.dtype)
        view[...] = values

    def run(self, instructions: Iterable[tuple[Instruction, Values]]) -> None:
        """Execute in program order; flags and barriers need no work."""
        for instruction, values in instructions:
            if instruction.execute is not None:
                instruction.execute(values, self)

    def _view(
        self,
        memory: str,
        slot: int,
        base: int,
        extents: Sequence[int],
        strides: Sequence[int],
        dtype: DTypeLike,
    ) -> np.ndarray:
        data = self.slots[slot] if memory == "dram" else self.memory[memory]
        return np.ndarray(tuple(extents), dtype, data.data, base, tuple(strides))
