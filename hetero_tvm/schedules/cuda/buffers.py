"""Buffers of a kernel: arguments as flat memory, workspaces between two kernels."""

from __future__ import annotations

import math

from hetero_tvm.codegen.pipeline import STACK_LIMIT
from hetero_tvm.host.tvm import Buffer, T
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.emit import Kernel


def flat(k: Kernel, buffer: Buffer) -> Buffer:
    """``buffer``'s memory as one row of elements."""
    return k.view(buffer, (math.prod(int(extent) for extent in buffer.shape),))


def flat_arguments(k: Kernel, op: FusedOp, packed: tuple[int, ...] | None = None) -> list[Buffer]:
    """The operands of ``op`` and its result ``Y``, declared in order, as flat memory.

    ``packed`` is the shape of the constant ``W`` in the layout that the kernel reads.
    """
    shapes = [packed if packed and x.name == "W" else x.shape for x in op.inputs]
    operands = [k.argument(x.name, s, x.dtype) for x, s in zip(op.inputs, shapes, strict=True)]
    operands.append(k.argument("Y", op.output.shape, op.output.dtype))
    return [flat(k, operand) for operand in operands]


def workspace(size: int, dtype: str = "float32") -> Buffer:
    """Global memory for ``size`` values that one kernel of the function leaves to the next.

    It is never so small that it would be taken for the stack of the host, and becomes a planned tensor (see
    ``relax_passes.storage.workspaces``).
    """
    return T.alloc_buffer((max(size, STACK_LIMIT // 4 + 1),), dtype, scope="global")
