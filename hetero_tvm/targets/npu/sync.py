"""Synchronisation: set and wait flags between the queues, from the byte intervals of the accesses.

Queues run in order and know nothing of each other.  For every instruction this pass looks for
earlier conflicting accesses (the same bytes, at least one of them written) on other queues, and
orders what no earlier flag orders already: a flag is set behind the producer and waited for before
the consumer.  What each queue knows of the others is a vector clock, so a flag is placed only where
the order does not follow from others.

One event per pair of queues is enough: the i-th wait of an event pairs with its i-th set, and both
queues meet their flags in the same order, because a queue never waits for a set that is older than
one it has waited for.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from hetero_tvm.targets.npu import isa

QUEUES = len(isa.QUEUES)


@dataclass
class Flag:
    """Set behind instruction ``after`` (an index) and waited for before instruction ``before``."""

    source: int
    target: int
    after: int
    before: int


Interval = tuple[Hashable, int, int, bool]
"""(memory or DRAM buffer, first byte, one past the last, written)."""


class Synchronizer:
    """Finds the flags of one stream, instruction by instruction, in program order."""

    def __init__(self, constant: Iterable[Hashable] = ()):
        self._constant = frozenset(constant)
        """DRAM buffers that are only read."""
        self._clock = [[0] * QUEUES for _ in range(QUEUES)]
        """Of every queue: how many instructions of each other one are known to have completed."""
        self._issued = [0] * QUEUES
        self._index: list[list[int]] = [[] for _ in range(QUEUES)]
        """Index in the stream of a queue's i-th instruction."""
        self._known: list[list[tuple[int, ...]]] = [[] for _ in range(QUEUES)]
        """Clock of a queue when its i-th instruction starts."""
        self._live: dict[Hashable, list[tuple[int, int, int, int, bool]]] = {}
        """Accesses that later ones may conflict with: (first, end, queue, number, written)."""
        self.flags: list[Flag] = []
        self._count = 0

    def add(self, queue: int, accesses: Iterable[Interval]) -> None:
        """The next instruction."""
        clock = self._clock[queue]
        needed = [0] * QUEUES
        accesses = [a for a in accesses if a[0] not in self._constant]
        for memory, low, high, write in accesses:
            for first, end, other, number, written in self._live.get(memory, ()):
                if (
                    other != queue and first < high and low < end and (write or written)
                    and number > clock[other] and number > needed[other]
                ):  # fmt: skip
                    needed[other] = number
        if any(needed):
            self._wait(queue, needed)
        self._issued[queue] += 1
        number = self._issued[queue]
        self._index[queue].append(self._count)
        self._known[queue].append(tuple(clock))
        self._count += 1
        for memory, low, high, write in accesses:
            live = self._live.get(memory)
            if live is None:
                self._live[memory] = [(low, high, queue, number, write)]
                continue
            # Whatever conflicts with an access that this one covers conflicts with this one too, and
            # this one is ordered behind it.
            if write:
                live[:] = [a for a in live if not (low <= a[0] and a[1] <= high)]
            else:
                live[:] = [
                    a for a in live if a[4] or a[2] != queue or not (low <= a[0] and a[1] <= high)
                ]
            live.append((low, high, queue, number, write))

    def _wait(self, queue: int, needed: list[int]) -> None:
        """Flags for what ``queue`` must know, without those that follow from the others."""
        clock = self._clock[queue]
        order = sorted(
            (q for q in range(QUEUES) if needed[q]), key=lambda q: self._index[q][needed[q] - 1], reverse=True
        )
        for source in order:
            number = needed[source]
            if number <= clock[source]:
                continue
            self.flags.append(Flag(source, queue, self._index[source][number - 1], self._count))
            for other, known in enumerate(self._known[source][number - 1]):
                if known > clock[other]:
                    clock[other] = known
            clock[source] = number

    def merge(self, memory: Hashable, low: int, high: int) -> None:
        """Forget the pieces in which the bytes from ``low`` to ``high`` were accessed: one interval per queue
        and kind remains.

        Keeps the pass fast when a kernel has written a tensor tile by tile.
        """
        rest: list[tuple[int, int, int, int, bool]] = []
        united: dict[tuple[int, bool], list[int]] = {}
        for access in self._live.get(memory, ()):
            first, end, queue, number, written = access
            if first < low or end > high:
                rest.append(access)
                continue
            known = united.setdefault((queue, written), [first, end, number])
            known[:] = [min(known[0], first), max(known[1], end), max(known[2], number)]
        self._live[memory] = rest + [(a, z, q, n, w) for (q, w), (a, z, n) in united.items()]
