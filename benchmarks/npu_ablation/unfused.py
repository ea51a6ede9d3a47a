"""Regions without fusion: every result goes through DRAM, every step behind a product is a kernel of its own.

Products and convolutions keep the tiles that they have with their epilogues.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.ops.matmul import BIAS, RESIDUAL
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.base import ROW_MAJOR
from hetero_tvm.schedules.npu.emit import UB, At, Kernel
from hetero_tvm.schedules.npu.fetch import FetchSpace
from hetero_tvm.schedules.npu.images.conv2d import NpuConv2dSpace
from hetero_tvm.schedules.npu.matmul.space import NpuMatmulSpace
from hetero_tvm.schedules.npu.tiles import ceil_div, even, extent_at
from hetero_tvm.targets.npu.regions import residency
from hetero_tvm.targets.npu.regions.compile_region import RegionCompiler
from hetero_tvm.targets.npu.regions.graph_region import GraphRegion
from hetero_tvm.targets.npu.regions.region import Value
from hetero_tvm.targets.npu.regions.residency import Step


@dataclass(frozen=True)
class Pointwise:
    """Step of an epilogue on a tensor of rows."""

    rows: int
    columns: int
    step: str

    @property
    def inputs(self) -> tuple[Any, ...]:
        return tuple(_Operand(step == BIAS) for step in (None, *((self.step,) if self.step in _READ else ())))


_READ = (BIAS, RESIDUAL)


@dataclass(frozen=True)
class _Operand:
    constant: bool


class PointwiseSpace(FetchSpace):
    """Design space of one step of an epilogue: tiles of rows pass through the unified buffer."""

    name = "npu.pointwise"

    def layouts(self, op: Any) -> tuple[tuple[str, ...], str]:
        raise NotImplementedError("layouts are those of the product")

    def dtypes(self, op: Any, machine: Any) -> tuple[str, ...]:
        return (machine.dtype, "float32" if op.step == BIAS else machine.dtype)

    def on_chip(self, op: Any) -> frozenset[int]:
        return frozenset()

    def emit(self, op: Any, point: Any, machine: Any) -> Any:
        return self.emit_held(op, point, machine, frozenset())

    def emit_held(self, op: Pointwise, point: Any, machine: Any, held: frozenset[int]) -> Any:
        k, dtype, n = Kernel(), machine.dtype, op.columns
        tiles = 2 + epilogue.temporaries((op.step,))
        wide = even(n, machine.spec.scratchpad("ub") // (8 * tiles), 16) if n > 16 else n
        rows = even(op.rows, max(1, machine.spec.scratchpad("ub") // (6 * tiles * wide)))
        with k:
            x = k.argument("X", (op.rows, n), dtype)
            more = []
            if op.step == BIAS:
                more.append(k.argument("bias", (n,), "float32"))
            elif op.step == RESIDUAL:
                more.append(k.argument("residual", (op.rows, n), dtype))
            y = k.argument("Y", (op.rows, n), dtype)
            with k.loop(ceil_div(n, wide)) as j, k.loop(ceil_div(op.rows, rows), buffers=2) as i:
                box = (extent_at(op.rows, rows, i), extent_at(n, wide, j))
                tile = k.alloc(UB, (rows, wide), dtype)
                bias = None

                def tile_of(buffer: Any) -> At:
                    return At(buffer, lambda a, b: (i * rows + a, j * wide + b))

                k.load(box, At(tile, lambda a, b: (a, b)), tile_of(x))
                if op.step == BIAS:
                    held_bias = k.alloc(UB, (wide,), "float32")
                    k.load((box[1],), At(held_bias, lambda b: (b,)), At(more[0], lambda b: (j * wide + b,)))
                    bias = At(held_bias, lambda a, b: (b,))

                def residual(buffer: Any) -> None:
                    k.load(box, At(buffer, lambda a, b: (a, b)), tile_of(more[0]))

                epilogue.apply(k, (op.step,), tile, box, dtype, epilogue.Operands(residual, bias))
                k.store(box, tile_of(y), At(tile, lambda a, b: (a, b)))
        return k.function


_POINTWISE = PointwiseSpace()


def split(steps: Sequence[Step], machine: NpuMachine) -> list[Step]:
    """The steps in which each step of an epilogue is a kernel; products keep the tiles they have with it."""
    result: list[Step] = []
    for step in steps:
        if not isinstance(step.space, NpuMatmulSpace | NpuConv2dSpace) or not step.op.epilogue:
            result.append(step)
            continue
        last = step.result
        columns = last.shape[1] if isinstance(step.space, NpuConv2dSpace) else last.shape[-1]
        rows = math.prod(last.shape) // columns
        value = Value(last.shape, dtype=last.dtype)
        bare = replace(step.op, epilogue=())
        result.append(
            replace(
                step,
                op=bare,
                result=value,
                operands=step.operands[:2],
                arrays=step.arrays[:2],
                wanted=step.wanted[:2],
                recorded=step.recorded or step.space.default(step.op, machine),
            )
        )
        extra = iter(range(2, len(step.operands)))
        for n, name in enumerate(step.op.epilogue):
            operands, arrays, wanted = [value], [None], [step.layout]
            if name in _READ:
                index = next(extra)
                operands.append(step.operands[index])
                arrays.append(step.arrays[index])
                wanted.append(step.wanted[index] if name == RESIDUAL else ROW_MAJOR)
            end = n + 1 == len(step.op.epilogue)
            made = last if end else Value(last.shape, dtype=last.dtype)
            result.append(
                Step(
                    _POINTWISE,
                    Pointwise(rows, columns, name),
                    None,
                    operands,
                    tuple(wanted),
                    made,
                    step.layout,
                    f"{step.name} {name}",
                    arrays,
                )
            )
            value = made
    return result


class Unfused(RegionCompiler):
    """Region compiler that splits epilogues off and keeps nothing on chip between kernels."""

    def arrange(
        self, steps: list[Step], leaving: Sequence[Value], strip_share: float, least_free: int
    ) -> list[Step]:
        steps = split(steps, self.machine)
        every = [value for step in steps for value, _ in step.writes()]
        residency.settle(steps, every, self.machine, least_free)
        return steps


class UnfusedRegion(Unfused, GraphRegion):
    """Region of a graph without fusion."""
