"""Independent check of a plan: shares no code with the planner, so that it can find its mistakes."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass

from hetero_tvm.errors import BuildError, shortened
from hetero_tvm.memory.problem import Buffer, Problem


class PlanError(BuildError):
    """A memory plan is wrong: two live buffers overlap, or an offset is not allowed."""


@dataclass(frozen=True)
class Finding:
    """A mistake in a plan; ``buffers`` are the ids concerned."""

    kind: str
    """``missing``, ``negative``, ``alignment``, ``capacity`` or ``overlap``."""
    buffers: tuple[str, ...]
    text: str


def find_mistakes(
    problem: Problem, offsets: Mapping[str, int], *, capacity: int | None = None, alignment: int = 1
) -> list[Finding]:
    """List the mistakes in these offsets (bytes by id); empty when the plan is right.

    A sweep over time keeps the live buffers sorted by offset.  While they are disjoint, a new one
    overlaps some of them exactly when it overlaps a neighbour in that order; one that does is
    reported and left out, so that later findings are not its echoes.
    """
    found = [finding for b in problem.buffers for finding in _own_mistakes(b, offsets, capacity, alignment)]
    events = []
    for index, b in enumerate(problem.buffers):
        if b.upper > b.lower and b.size > 0 and b.id in offsets:
            # Ends (0) come before starts (1) of the same time: ranges are half open.
            events += [(b.lower, 1, index), (b.upper, 0, index)]
    live: list[tuple[int, int, int]] = []  # (start, end, index), disjoint, ascending
    for _, is_start, index in sorted(events):
        b = problem.buffers[index]
        start = offsets[b.id]
        entry = (start, start + b.size, index)
        at = bisect.bisect_left(live, entry)
        if not is_start:
            if at < len(live) and live[at] == entry:
                del live[at]
            continue
        clashes = [live[i] for i in (at - 1, at) if 0 <= i < len(live)]
        clashes = [other for other in clashes if other[0] < entry[1] and entry[0] < other[1]]
        if not clashes:
            live.insert(at, entry)
        for other in clashes:
            a = problem.buffers[other[2]]
            found.append(
                Finding(
                    "overlap",
                    (a.id, b.id),
                    f"{a.id!r} [{other[0]}, {other[1]}) and {b.id!r} [{entry[0]}, {entry[1]}) overlap "
                    f"while both live, from {max(a.lower, b.lower)} to {min(a.upper, b.upper)}",
                )
            )
    return found


def check_plan(
    problem: Problem, offsets: Mapping[str, int], *, capacity: int | None = None, alignment: int = 1
) -> None:
    """Raise :class:`PlanError` with all findings when the plan is wrong."""
    found = find_mistakes(problem, offsets, capacity=capacity, alignment=alignment)
    if found:
        texts = shortened([finding.text for finding in found])
        raise PlanError("the memory plan is wrong", problems=texts)


def _own_mistakes(
    b: Buffer, offsets: Mapping[str, int], capacity: int | None, alignment: int
) -> list[Finding]:
    """Mistakes that need no second buffer: no offset, negative, not aligned, beyond the capacity."""
    if b.id not in offsets:
        return [Finding("missing", (b.id,), f"{b.id!r} has no offset")]
    offset, found = offsets[b.id], []
    if offset < 0:
        found.append(Finding("negative", (b.id,), f"{b.id!r} has the negative offset {offset}"))
    wanted = b.alignment or alignment
    if offset % wanted:
        text = f"{b.id!r} at {offset} is not aligned to {wanted} bytes"
        found.append(Finding("alignment", (b.id,), text))
    takes_memory = b.upper > b.lower and b.size > 0
    if capacity is not None and takes_memory and offset + b.size > capacity:
        text = f"{b.id!r} ends at {offset + b.size}, beyond the capacity of {capacity} bytes"
        found.append(Finding("capacity", (b.id,), text))
    return found
