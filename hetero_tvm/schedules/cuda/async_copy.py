"""Copies from global to shared memory that run beside the arithmetic (cp.async, since sm_80)."""

from __future__ import annotations

from hetero_tvm.host.tvm import Buffer, Expr, T, tirx
from hetero_tvm.schedules.cuda.values import bytes_of
from hetero_tvm.schedules.emit import Kernel, int32


def copy(k: Kernel, shared: Buffer, to: Expr, source: Buffer, origin: Expr, width: int, dtype: str) -> None:
    """``shared[to:to + width] = source[origin:origin + width]``, both flat buffers of ``dtype``.

    Complete after the :func:`wait` for its group; a single value of 2 bytes is copied at once, because
    the hardware has no such copy.
    """
    size = width * bytes_of(dtype)
    if size < 4:
        k.store(shared, k.load(source, [k.ramp(origin, width)]), [k.ramp(to, width)])
        return
    pointers = k.address(shared, [to]), int32(0), k.address(source, [origin]), int32(0)
    T.evaluate(tirx.call_intrin(dtype, "tirx.s_tir.cp_async_raw", *pointers, int32(size)))


def commit() -> None:
    """Make a group of the copies since the last call."""
    T.evaluate(T.ptx["cp.async.commit_group"]())


def wait(groups: int) -> None:
    """Wait for all but the last ``groups`` groups of this thread; those of others need a barrier too."""
    T.evaluate(T.ptx["cp.async.wait_group"](int32(groups)))
