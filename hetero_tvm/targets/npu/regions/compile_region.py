"""Compilation of one region: from its operators to one command stream."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from hetero_tvm.errors import BuildError
from hetero_tvm.machines.npu.numbers import numpy_dtype
from hetero_tvm.ops.base import Operand
from hetero_tvm.schedules.npu.base import ROW_MAJOR, stored_as
from hetero_tvm.schedules.npu.fetch import Fetch, FetchSpace
from hetero_tvm.targets.npu.regions import residency, stems, strips
from hetero_tvm.targets.npu.regions.binding import L1Full
from hetero_tvm.targets.npu.regions.codegen import DTYPE
from hetero_tvm.targets.npu.regions.kernel_memory import WIDTH
from hetero_tvm.targets.npu.regions.region import (
    CompiledRegion,
    KernelCache,
    RegionBuilder,
    Value,
    plain_layout,
)
from hetero_tvm.targets.npu.regions.residency import Step

_Made = TypeVar("_Made")
_ATTEMPTS = ((0.95, 8), (0.8, 8), (0.0, 8), (0.0, 4), (0.0, 2), (0.0, 1))
"""Pairs (share of L1 that strips may take, n: 1/n of L1 is left to tiles), tried in turn."""


@dataclass
class Settled:
    """Kernels of a region with their points, and the values that stay on chip between them."""

    builder: RegionBuilder
    steps: list[Step]
    outputs: list[tuple[str, Value]]

    def key(self) -> tuple[Any, ...]:
        """Key that is equal for two choices of points of one region that come to the same code."""
        return tuple(
            (
                step.space.name,
                step.op,
                tuple(sorted(step.point.items())),
                step.held,
                step.reserves,
                tuple((value.resident, value.in_ub) for value, _ in step.writes()),
            )
            for step in self.steps
        )


class RegionCompiler(ABC):
    """Chooses the values that stay in L1, then generates the kernels."""

    def __init__(self, name: str, cache: KernelCache):
        self.name, self.cache, self.machine = name, cache, cache.machine

    @abstractmethod
    def prepare(self, builder: RegionBuilder) -> tuple[list[Step], list[tuple[str, Value]]]:
        """One step per operator, and the values that leave the region by name."""

    def builder(self) -> RegionBuilder:
        """A fresh builder of the region's stream."""
        return RegionBuilder(self.name, self.machine, self.cache)

    def arrange(
        self, steps: list[Step], leaving: Sequence[Value], strip_share: float, least_free: int
    ) -> list[Step]:
        """Steps with their points, joined and cut into strips, and the values that stay on chip.

        Parameters
        ----------
        leaving : values that leave the region.
        strip_share : share of L1 that strips may take; 0: no joining, no strips.
        least_free : bytes of L1 that are left to tiles.

        Raises
        ------
        L1Full : resident values do not fit.
        """
        if strip_share:
            steps = stems.join(steps, leaving, self.machine)
            steps = strips.split(steps, leaving, self.machine, strip_share)
        residency.settle(steps, leaving, self.machine, least_free)
        if strip_share and len(thinned := strips.thin(steps)) > len(steps):
            steps = thinned
            residency.settle(steps, leaving, self.machine, least_free)
        return steps

    def compile(self) -> CompiledRegion:
        """The region's stream and constants.  Raises :class:`L1Full`."""
        return self.first_that_fits(self.emit)

    def first_that_fits(self, make: Callable[[Settled], _Made]) -> _Made:
        """Result of ``make`` for the first of several arrangements that fit L1: strips take less and less of
        it, larger and larger shares are left to tiles.  Raises :class:`L1Full`."""
        l1 = self.machine.spec.scratchpad("l1")
        for share, part in _ATTEMPTS:
            try:
                return make(self._settle(share, l1 // part))
            except L1Full as error:
                failed = error
        raise failed

    def _settle(self, strip_share: float, least_free: int) -> Settled:
        builder = self.builder()
        steps, outputs = self.prepare(builder)
        leaving = [value for _, value in outputs]
        return Settled(builder, self.arrange(steps, leaving, strip_share, least_free), outputs)

    def emit(self, settled: Settled) -> CompiledRegion:
        """The region with these kernels.  Raises :class:`L1Full`."""
        builder, steps, outputs = settled.builder, settled.steps, settled.outputs
        for step in steps:
            self._kernel(builder, step)
        for name, value in outputs:
            builder.output(name, value, f"{name} to host")
        return builder.finish()

    def _kernel(self, builder: RegionBuilder, step: Step) -> None:
        """Append the kernel of a step, after conversions of its operands."""
        space, op, point, held, machine = step.space, step.op, step.point, step.held, self.machine
        if (leader := step.packed_for) is not None:
            packed = leader.space.pack(leader.op, leader.point, machine)[1](leader.arrays[1])
            op, step.arrays = Fetch(1, 1, packed.size), [packed]
            step.result.shape = (packed.size,)
        builder.reserves = step.reserves
        kernel = (space.name, op, tuple(sorted(point.items())))
        packers = space.pack(op, point, machine)
        dtypes = space.dtypes(op, machine)
        tensors = []
        for n, (array, value) in enumerate(zip(step.arrays, step.operands, strict=True)):
            if n in held:
                tensors.append(builder.existing(value))
            elif n in packers:
                if array is None:
                    raise BuildError(
                        f"{step.name}: operand {op.inputs[n].name} is declared constant, and is not",
                        hint="this is a fault of the fusion that made the call; switch it off and report it",
                    )
                pack = functools.partial(packers[n], array)
                tensors.append(builder.constant_of((*kernel, n, array.shape), pack))
            elif value is not None:
                tensors.append(builder.tensor_of(value, step.wanted[n], f"{step.name} input", dtypes[n]))
            elif space.name == FetchSpace.name:
                tensors.append(builder.constant(array))
            else:
                make = functools.partial(self._constant, array, op.inputs[n], step.wanted[n], dtypes[n])
                tensors.append(builder.constant_of((*kernel, n, array.shape), make))
        for n, table in enumerate(space.tables(op, point, machine)):
            tensors.append(builder.constant(table, (*kernel, bool(held), n)))
        tensors += [builder.fresh(*own) for own in space.scratch(op, point, machine)]
        for index, value in enumerate((step.result, step.copy), start=len(step.operands)):
            if value is None:
                continue
            root = value.root
            if not root.by_layout:
                own = stored_as(root.dtype, machine.dtype)
                size = WIDTH[own] * math.prod(root.shape)
                tensor = builder.on_chip(root, size) if index in held else builder.fresh(root.shape, own)
                root.by_layout[plain_layout(root.shape, step.layout)] = tensor
            tensors.append(builder.existing(value))
        # After the operands: their conversions are kernels of their own.
        program = builder.cache.of_space(space, op, point, builder.ub_end, held)
        step.number = builder.call(program, tensors, step.name, step.behind and step.behind.number)

    def _constant(self, array: np.ndarray, operand: Operand, layout: str, dtype: str) -> np.ndarray:
        """Array of a constant operand that the space does not pack: declared constants stay float32."""
        if operand.constant and array.dtype == np.float32:
            return np.ascontiguousarray(array)
        if layout != ROW_MAJOR:
            array = array.transpose(0, 2, 3, 1)
        if array.dtype == np.uint8:
            array = array.astype(np.int16) - 128
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(array).astype(numpy_dtype(DTYPE[dtype]))
