"""The space of everything that no other space takes: any program that :mod:`recover` can read."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.machines.npu.numbers import NAMES, numpy_dtype
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.group_norm import GroupNorm
from hetero_tvm.schedules.base import Knob, Packer, Point
from hetero_tvm.schedules.npu.base import NpuSpace, stored_as
from hetero_tvm.schedules.npu.emit import Kernel
from hetero_tvm.schedules.npu.tensor_program.emit_gather import GatherStage
from hetero_tvm.schedules.npu.tensor_program.emit_map import MapStage
from hetero_tvm.schedules.npu.tensor_program.emit_product import ProductStage
from hetero_tvm.schedules.npu.tensor_program.index import NotAffineError
from hetero_tvm.schedules.npu.tensor_program.recover import recover
from hetero_tvm.schedules.npu.tensor_program.stages import Buffer, Gather, Load, Map, Program
from hetero_tvm.schedules.npu.tensor_program.values import activation

PlannedStage = MapStage | GatherStage | ProductStage


class NpuProgramSpace(NpuSpace):
    """Chains of tensor expressions with affine accesses, reductions, products and gathers."""

    name = "npu.program"
    version = 1

    def refuses(self, op: FusedOp, machine: NpuMachine) -> str | None:
        planned = _planned(op, machine.dtype, machine.spec)
        return planned if isinstance(planned, str) else None

    def is_identity(self, op: FusedOp, machine: NpuMachine) -> bool:
        program = _program(op)
        if isinstance(program, str) or program.inputs != 1 or len(program.buffers) != 2:
            return False
        (stage, *more), (source, result) = program.stages, program.buffers
        if more or not isinstance(stage, Map) or stage.reduce or not isinstance(stage.value, Load):
            return False
        same = _stored(source, machine.dtype) == _stored(result, machine.dtype)
        whole = math.prod(stage.extents) == source.size == result.size
        there, here = stage.value, stage.out
        return same and whole and (there.base, there.strides) == (here.base, here.strides)

    def knobs(self, op: FusedOp, machine: NpuMachine) -> tuple[Knob, ...]:
        return ()

    def default(self, op: FusedOp, machine: NpuMachine) -> Point:
        return {}

    def dtypes(self, op: FusedOp, machine: NpuMachine) -> tuple[str, ...]:
        program = _program(op)
        assert isinstance(program, Program)
        return tuple(_stored(b, machine.dtype) for b in program.buffers[: program.inputs])

    def pack(self, op: FusedOp, point: Point, machine: NpuMachine) -> dict[int, Packer]:
        """Constants in the types in which the kernel reads them."""
        types = [numpy_dtype(NAMES[dtype]) for dtype in self.dtypes(op, machine)]
        return {
            n: lambda a, dtype=types[n]: np.ascontiguousarray(a).astype(dtype)
            for n, operand in enumerate(op.inputs)
            if operand.constant
        }

    def scratch(self, op: FusedOp, point: Point, machine: NpuMachine) -> list[tuple[tuple[int, ...], str]]:
        program = _program(op)
        assert isinstance(program, Program)
        buffers = (program.buffers[n] for n in program.scratch)
        return [(buffer.shape, _stored(buffer, machine.dtype)) for buffer in buffers]

    def emit(self, op: FusedOp, point: Point, machine: NpuMachine) -> PrimFunc:
        program, stages = _program(op), _planned(op, machine.dtype, machine.spec)
        assert isinstance(program, Program) and not isinstance(stages, str)
        k = Kernel()
        with k:
            arguments = [
                k.argument(f"T{n}", (b.size,), _stored(b, machine.dtype))
                for n, b in enumerate(program.buffers)
            ]
            for stage in stages:
                # A loop of one iteration around each: its buffers make room for those of the next.
                with k.loop(1):
                    stage.emit(k, arguments)
        return k.function


def _stored(buffer: Buffer, dtype: str) -> str:
    """Type in which the NPU keeps a buffer."""
    return "float32" if buffer.wide else stored_as(buffer.dtype, dtype)


@functools.lru_cache(maxsize=512)
def _program(op: FusedOp) -> Program | str:
    """The program of an operator, or the reason why it has none."""
    try:
        if isinstance(op, GroupNorm) and op.activation:
            return _activated(recover(dataclasses.replace(op, activation="").workload()), op.activation)
        return recover(op.workload())
    except NotAffineError as error:
        return str(error)


def _activated(program: Program, name: str) -> Program:
    """The program with an activation behind its result."""
    stages = tuple(
        dataclasses.replace(stage, value=activation(name, stage.value))
        if isinstance(stage, Map) and stage.out.buffer == len(program.buffers) - 1 and not stage.reduce
        else stage
        for stage in program.stages
    )
    return dataclasses.replace(program, stages=stages)


@functools.lru_cache(maxsize=512)
def _planned(op: FusedOp, dtype: str, spec: NPUSpec) -> tuple[PlannedStage, ...] | str:
    """The stages with their tiles, or the reason why there are none."""
    program = _program(op)
    if isinstance(program, str):
        return program
    if program.buffers[-1].dtype == "int64":
        # Their lower halves are all of an index, which is read here, but not of any number.
        return "the vector unit has no int64"
    other = {b.dtype for b in program.buffers} & ({"float16", "bfloat16"} - {dtype})
    if other:
        return f"the NPU keeps {dtype} at this precision, not {other.pop()}"
    dtypes = tuple(_stored(b, dtype) for b in program.buffers)
    planned: list[PlannedStage] = []
    try:
        for stage in program.stages:
            if isinstance(stage, Map):
                mapped = MapStage(stage, dtypes, spec)
                if mapped.tiling is None:
                    return f"its operands do not fit the unified buffer of {spec.name}"
                planned.append(mapped)
            elif isinstance(stage, Gather):
                gather = GatherStage(stage, dtypes, spec)
                if not gather.rows:
                    return f"a row of {stage.run} elements does not fit the unified buffer of {spec.name}"
                planned.append(gather)
            else:
                planned.append(ProductStage(stage, dtypes, spec))
    except NotAffineError as error:
        return str(error)
    return tuple(planned)
