"""Inner products of few rows with many, all contiguous along what is summed.

Loop structure::

    parallel over batch x blocks of the many rows:
        for each few of them:
            acc[few][many][lanes] += vector of the few * vector of the many        (registers)
            fold the lanes, stored

This is a vector with a transposed matrix, or a matrix with a vector: rows are read once and as they lie,
where the register tile would transpose them first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.schedules.emit import Index, Kernel, fold_lanes, vector_pieces

MOST_FEW = 4
"""Most rows of the operand that has few."""

_ACCUMULATORS = 8
_BLOCKS_PER_THREAD = 4


@dataclass(frozen=True)
class Roles:
    """Roles of the operands: which one has the few rows.

    Attributes
    ----------
    few_left : whether it is A (rows of A with columns of B); else B (columns of B with rows of A).
    few, many : numbers of rows.
    """

    few_left: bool
    few: int
    many: int


def roles_of(op: BatchMatmul) -> Roles | None:
    """The roles of the operands; None where rows are not contiguous, or there are many on both sides."""
    *_, a_column = op.left_at
    *_, b_row, _ = op.right_at
    if op.k > 1 and (a_column != 1 or b_row != 1):
        return None
    if op.m <= MOST_FEW:
        return Roles(True, op.m, op.n)
    return Roles(False, op.n, op.m) if op.n <= MOST_FEW else None


def block_of(op: BatchMatmul, roles: Roles, machine: CpuModel) -> int:
    """Rows of a block: whole steps, and some blocks for each thread."""
    at_once = rows_at_once(roles)
    wanted = -(-roles.many // max(1, -(-_BLOCKS_PER_THREAD * machine.threads // op.batch)))
    return min(roles.many, -(-wanted // at_once) * at_once)


def rows_at_once(roles: Roles) -> int:
    """Rows of the many that accumulate together."""
    return max(2, _ACCUMULATORS // roles.few)


def emit_block(
    k: Kernel,
    op: BatchMatmul,
    roles: Roles,
    first: Expr,
    count: int,
    lanes: int,
    few_at: Callable[[int, Index, int], Expr],
    many_at: Callable[[Expr, Index, int], Expr],
    put: Callable[[int, Expr, Expr], None],
) -> None:
    """The products of ``count`` of the many rows from ``first`` on, in a kernel that is being built.

    ``few_at`` and ``many_at`` give (row, k, lanes) -> vector; ``put`` takes (few row, many row, value).
    """

    def together(start: Expr, rows: int) -> None:
        acc: Buffer = k.scratch((roles.few, rows, lanes))
        every = [(f, z) for z in range(rows) for f in range(roles.few)]
        for f, z in every:
            k.store(acc, k.splat(0.0, lanes), [f, z, k.ramp(0, lanes)])

        def step(at: Index, width: int) -> None:
            few = [k.let(few_at(f, at, width)) for f in range(roles.few)]
            for z in range(rows):
                value = k.let(many_at(start + z, at, width))
                for f in range(roles.few):
                    place = [f, z, k.ramp(0, width)]
                    k.store(acc, k.load(acc, place) + few[f] * value, place)

        full = op.k // lanes
        if full:
            with k.serial(full) as d:
                step(d * lanes, lanes)
        for at, width in vector_pieces(op.k - full * lanes, lanes):
            step(full * lanes + at, width)
        fold_lanes(k, acc, every, lanes)
        for f, z in every:
            put(f, start + z, k.load(acc, [f, z, tirx.const(0, "int32")]))

    at_once = rows_at_once(roles)
    full, rest = divmod(count, at_once)
    if full:
        with k.serial(full) as group:
            together(first + group * at_once, at_once)
    if rest:
        together(first + full * at_once, rest)
