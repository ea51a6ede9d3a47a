"""Products in which an operand has few rows: what is large is read once, and as it lies.

Two orders beside that of the register tiles (``batch_matmul.py``): strips of few rows of B (``streamed.py``),
and inner products of rows that are contiguous along the reduction (``inner.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.batch_matmul import BatchMatmul, ProductOfViews
from hetero_tvm.schedules.cpu.products.inner import block_of, emit_block, roles_of
from hetero_tvm.schedules.cpu.products.streamed import MOST_ROWS, emit_strip, strip_of
from hetero_tvm.schedules.emit import Kernel, strided_position

STRIPS, INNER = "strips", "inner"

_LONG_ROW = 2048
"""Bytes between rows of B from which on each row of a panel is a page of its own for the hardware."""


def orders(op: BatchMatmul) -> tuple[str, ...]:
    """The orders that serve a product of float32."""
    if op.dtype != "float32":
        return ()
    strips = op.m <= MOST_ROWS and op.n > 1 and op.right_at[-1] == 1
    return (*([STRIPS] if strips else []), *([INNER] if roles_of(op) is not None else []))


def estimate(op: BatchMatmul, order: str, machine: CpuModel) -> float:
    """Cycles of one k over all columns, as the register tiles count them."""
    outside, lanes = _outside(op, machine), machine.lanes
    if order == STRIPS:
        per_vector = max(op.m / machine.fma_units, 1.3) + 0.3 * op.m + 2.4 * outside
        work = op.batch * -(-op.n // strip_of(op, machine))
        vectors = -(-op.n // lanes)
    else:
        roles = roles_of(op)
        assert roles is not None
        # The rows' vectors, and what folding their lanes takes, shared out over the reduction.
        per_vector = max(roles.few / machine.fma_units, 1.3) + 2.4 * outside
        per_vector += roles.few * (2.0 * math.log2(lanes) + 1.0) * lanes / op.k
        work = op.batch * -(-roles.many // block_of(op, roles, machine))
        vectors = roles.many / lanes
    return vectors * per_vector * (-(-work // machine.threads) * machine.threads / work)


def page_cycles(op: BatchMatmul, vectors: int, machine: CpuModel) -> float:
    """Cycles per k that a panel of B of ``vectors`` waits for memory: where rows lie far apart, the hardware
    fetches a page for few vectors of each."""
    *_, b_row, b_column = op.right_at
    if b_column != 1:
        return _outside(op, machine) * 4.0 * vectors  # whole lines, transposed
    if 4 * b_row < _LONG_ROW:
        return 0.0
    return _outside(op, machine) * (20.0 + 3.0 * vectors)


def emit(op: BatchMatmul, order: str, machine: CpuModel) -> PrimFunc:
    """The kernel of A, B, Y in one of the :func:`orders`."""
    body = _strips if order == STRIPS else _inner
    k = Kernel()
    with k:
        arguments = [k.argument(o.name, o.shape) for o in (*op.inputs, op.output)]
        body(k, op, machine, *(k.view(b, (math.prod(int(e) for e in b.shape),)) for b in arguments))
    return k.function


def result_strides(op: ProductOfViews) -> tuple[int, ...]:
    """Strides in Y of each lead dimension and of the rows."""
    return strides_in_order((*op.lead, op.m, op.n), op.order)


def strides_in_order(extents: Sequence[Any], order: Sequence[int]) -> tuple[Any, ...]:
    """Strides of each of ``extents`` but the last, numbers or expressions, which lie in ``order``."""
    strides: dict[int, Any] = {}
    below: Any = 1
    for axis in reversed(order):
        strides[axis] = below
        below *= extents[axis]
    return tuple(strides[axis] for axis in range(len(extents) - 1))


def _outside(op: BatchMatmul, machine: CpuModel) -> float:
    """Share of the larger operand, of all items of the batch, that is not in L2."""
    return max(0.0, 1.0 - machine.l2 / (4 * math.prod(op.right if op.n >= op.m else op.left)))


def _blocks(
    k: Kernel, op: BatchMatmul, extent: int, block: int, body: Callable[[Expr, Expr, int], None]
) -> None:
    """``body(item of the batch, number of the block, extent of it)``, in parallel."""
    blocks = -(-extent // block)
    last = extent - (blocks - 1) * block
    with k.parallel(op.batch * blocks, op.flops) as work:
        number, item = tirx.floormod(work, blocks), tirx.floordiv(work, blocks)
        if last == block:
            body(item, number, block)
        else:
            whole = number < blocks - 1
            k.branch(whole, lambda: body(item, number, block), lambda: body(item, number, last))


def _strips(k: Kernel, op: BatchMatmul, machine: CpuModel, left: Buffer, right: Buffer, y: Buffer) -> None:
    strip = strip_of(op, machine)
    *lead_strides, row_stride = result_strides(op)
    *a_place, a_row, a_column = op.left_at
    *b_place, b_row, _ = op.right_at

    def body(item: Expr, number: Expr, width: int) -> None:
        a_base = k.let(strided_position(item, op.lead, a_place))
        b_base = k.let(strided_position(item, op.lead, b_place) + number * strip)
        y_base = k.let(strided_position(item, op.lead, [0, *lead_strides]) + number * strip)
        emit_strip(
            k,
            op,
            width,
            machine.lanes,
            a_at=lambda r, d: k.load(left, [a_base + r * a_row + d * a_column]),
            b_at=lambda d, c, w: k.load(right, [k.ramp(b_base + d * b_row + c, w)]),
            put=lambda r, c, w, v: k.store(y, v, [k.ramp(y_base + r * row_stride + c, w)]),
        )

    _blocks(k, op, op.n, strip, body)


def _inner(k: Kernel, op: BatchMatmul, machine: CpuModel, left: Buffer, right: Buffer, y: Buffer) -> None:
    roles = roles_of(op)
    assert roles is not None
    block = block_of(op, roles, machine)
    *lead_strides, row_stride = result_strides(op)
    *a_place, a_row, _ = op.left_at
    *b_place, _, b_column = op.right_at

    def body(item: Expr, number: Expr, count: int) -> None:
        a_base = k.let(strided_position(item, op.lead, a_place))
        b_base = k.let(strided_position(item, op.lead, b_place))
        y_base = k.let(strided_position(item, op.lead, [0, *lead_strides]))
        a = (left, a_base, a_row)
        b = (right, b_base, b_column)
        few, many = (a, b) if roles.few_left else (b, a)
        steps = (row_stride, 1) if roles.few_left else (1, row_stride)
        emit_block(
            k,
            op,
            roles,
            k.let(number * block),
            count,
            machine.lanes,
            few_at=lambda r, d, w: k.load(few[0], [k.ramp(few[1] + r * few[2] + d, w)]),
            many_at=lambda r, d, w: k.load(many[0], [k.ramp(many[1] + r * many[2] + d, w)]),
            put=lambda f, z, v: k.store(y, v, [y_base + f * steps[0] + z * steps[1]]),
        )

    _blocks(k, op, roles.many, block, body)
