"""Attribution of time to operators that overlap on several queues."""

from __future__ import annotations

from collections.abc import Sequence

Interval = tuple[float, float, int]
"""Start and end of a piece of work, and the number of the operator that it belongs to."""


def attribute(intervals: Sequence[Interval], count: int, whole: float) -> tuple[list[float], list[float]]:
    """Cycles of each of ``count`` operators: its share of the ``whole``, and the time in which it was active.

    Where several operators are active their cycles are divided evenly, so that shares add up to the whole;
    where none is, the time belongs to the operator that begins next, which is what everyone waited for, and
    behind the last end to the operator that ended last.  Active times overlap, and no queue can work for an
    operator longer than it is active.
    """
    shares, active = [0.0] * count, [0.0] * count
    changes = sorted(
        [(start, 1, owner) for start, end, owner in intervals if end > start]
        + [(end, -1, owner) for start, end, owner in intervals if end > start]
    )
    open_pieces = [0] * count
    running: set[int] = set()
    before, last = 0.0, None
    for time, step, owner in changes:
        length = time - before
        if length > 0:
            for one in running or {owner}:
                shares[one] += length / max(1, len(running))
            for one in running:
                active[one] += length
        before = time
        open_pieces[owner] += step
        if open_pieces[owner]:
            running.add(owner)
        else:
            running.discard(owner)
            last = owner
    if last is not None and whole > before:
        shares[last] += whole - before
        active[last] += whole - before
    return shares, active
