"""Exchange between the threads of a block: barriers, shuffles, reductions."""

from __future__ import annotations

from collections.abc import Callable

from hetero_tvm.host.tvm import Buffer, Expr, T, tirx
from hetero_tvm.machines.gpu import WARP
from hetero_tvm.schedules.emit import Kernel, int32

Combine = Callable[[Expr, Expr], Expr]
"""An associative operation on two values."""


def barrier() -> None:
    """Wait until all threads of the block are here and see each other's shared memory."""
    T.evaluate(tirx.op.tvm_storage_sync("shared"))


def shuffle_xor(value: Expr, lanes: int) -> Expr:
    """``value`` of the thread whose lane differs in the bit ``lanes``."""
    every = tirx.const(0xFFFFFFFF, "uint32")
    return tirx.op.tvm_warp_shuffle_xor(every, value, int32(lanes), int32(WARP), int32(WARP))


def reduce_in_warp(k: Kernel, sums: Buffer, at: list[Expr | int], lanes: int, combine: Combine) -> None:
    """``sums[at]`` combined over groups of ``lanes`` neighbouring lanes, in every one of them."""
    while lanes > 1:
        lanes //= 2
        other = k.let(shuffle_xor(k.load(sums, at), lanes))
        k.store(sums, combine(k.load(sums, at), other), at)


def reduce_in_row(
    k: Kernel,
    sums: Buffer,
    at: list[Expr | int],
    threads: int,
    thread: Expr,
    combine: Combine,
    shared: Buffer | None,
    row: Expr | int,
) -> None:
    """``sums[at]`` combined over the ``threads`` threads of a row, in every one of them.

    Parameters
    ----------
    thread : index of this thread in its row.
    shared : a word for each warp of each row, not used again before the next barrier; None where a row is
        one warp or less.
    row : index of the row in the block.
    """
    reduce_in_warp(k, sums, at, min(threads, WARP), combine)
    warps = threads // WARP
    if warps > 1:
        with k.when(thread % WARP == 0):
            k.store(shared, k.load(sums, at), [row * warps + thread // WARP])
        barrier()
        k.store(sums, k.load(shared, [row * warps + thread % warps]), at)
        reduce_in_warp(k, sums, at, warps, combine)
