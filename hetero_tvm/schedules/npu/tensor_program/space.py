"""The space of everything that no other space takes: any program that :mod:`recover` can read."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np

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
from hetero_tvm.schedules.npu.tensor_program.stages import Buffer, Gather, Map, Program
from hetero_tvm.schedules.npu.tensor_program.values import activation

DTYPE = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "int8": "i8", "int32": "i32"}


class NpuProgramSpace(NpuSpace):
    """Chains of tensor expressions with affine accesses, reductions, products and gathers."""

    name = "npu.program"
    version = 1

    def refuses(self, op: FusedOp, machine: Any) -> str | None:
        planned = _planned(op, machine.dtype, machine.spec)
        return planned if isinstance(planned, str) else None

    def is_identity(self, op: FusedOp, machine: Any) -> bool:
        program = _program(op)
        if isinstance(program, str) or program.inputs != 1 or len(program.buffers) != 2:
            return False
        (stage, *more), (source, result) = program.stages, program.buffers
        if more or not isinstance(stage, Map) or stage.reduce or stage.expr[0] != "load":
            return False
        same = _stored(source, machine.dtype) == _stored(result, machine.dtype)
        whole = math.prod(stage.extents) == source.size == result.size
        there, here = stage.expr[1], stage.out
        return same and whole and (there.base, there.strides) == (here.base, here.strides)

    def knobs(self, op: FusedOp, machine: Any) -> tuple[Knob, ...]:
        return ()

    def default(self, op: FusedOp, machine: Any) -> Point:
        return {}

    def dtypes(self, op: FusedOp, machine: Any) -> tuple[str, ...]:
        program = _program(op)
        assert isinstance(program, Program)
        return tuple(_stored(b, machine.dtype) for b in program.buffers[: program.inputs])

    def pack(self, op: FusedOp, point: Point, machine: Any) -> dict[int, Packer]:
        """Constants in the types in which the kernel reads them."""
        from hetero_tvm.machines.npu.numbers import numpy_dtype

        types = [numpy_dtype(DTYPE[dtype]) for dtype in self.dtypes(op, machine)]
        return {
            n: lambda a, dtype=types[n]: np.ascontiguousarray(a).astype(dtype)
            for n, operand in enumerate(op.inputs)
            if operand.constant
        }

    def scratch(self, op: FusedOp, point: Point, machine: Any) -> list[tuple[tuple[int, ...], str]]:
        program = _program(op)
        assert isinstance(program, Program)
        return [
            (program.buffers[n].shape, _stored(program.buffers[n], machine.dtype)) for n in program.scratch
        ]

    def emit(self, op: FusedOp, point: Point, machine: Any) -> Any:
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
    return "float32" if buffer.wide else stored_as(buffer.dtype, dtype)


@functools.lru_cache(maxsize=512)
def _program(op: FusedOp) -> Program | str:
    """What the operator computes, or why that is no program."""
    try:
        if isinstance(op, GroupNorm) and op.activation:
            return activated(recover(dataclasses.replace(op, activation="").workload()), op.activation)
        return recover(op.workload())
    except NotAffineError as error:
        return str(error)


def activated(program: Program, name: str) -> Program:
    """The program with an activation behind its result."""
    stages = tuple(
        dataclasses.replace(stage, expr=activation(name, stage.expr))
        if isinstance(stage, Map) and stage.out.buffer == len(program.buffers) - 1 and not stage.reduce
        else stage
        for stage in program.stages
    )
    return dataclasses.replace(program, stages=stages)


@functools.lru_cache(maxsize=512)
def _planned(op: FusedOp, dtype: str, spec: Any) -> tuple[Any, ...] | str:
    """The stages with their tiles, or why there are none."""
    program = _program(op)
    if isinstance(program, str):
        return program
    other = {b.dtype for b in program.buffers} & ({"float16", "bfloat16"} - {dtype})
    if other:
        return f"the NPU keeps {dtype} at this precision, not {other.pop()}"
    dtypes = tuple(_stored(b, dtype) for b in program.buffers)
    planned: list[Any] = []
    try:
        for stage in program.stages:
            if isinstance(stage, Map):
                planned.append(MapStage(stage, dtypes, spec))
                if planned[-1].tiling is None:
                    return f"its operands do not fit the unified buffer of {spec.name}"
            elif isinstance(stage, Gather):
                planned.append(GatherStage(stage, dtypes, spec))
                if not planned[-1].rows:
                    return f"a row of {stage.run} elements does not fit the unified buffer of {spec.name}"
            else:
                planned.append(ProductStage(stage, dtypes, spec))
    except NotAffineError as error:
        return str(error)
    return tuple(planned)
