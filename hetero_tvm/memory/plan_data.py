"""A memory plan as data: what the manifest, the command line and the plots read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hetero_tvm.errors import UsageError

VERSION = 1


@dataclass(frozen=True)
class Plan:
    """Offsets of all buffers in one arena.  All numbers but ``seconds`` are in bytes."""

    offsets: Mapping[str, int]
    """Offset by buffer id; 0 for buffers that take no memory."""
    peak: int
    """The highest end of a buffer: the size that the arena needs."""
    lower_bound: int
    """Proven: no plan has a lower peak."""
    optimal: bool
    method: str
    """Stage of the planner that found it: trivial, greedy, local search or exact search."""
    seconds: float | None = None
    """Time that the planner took; None of a plan that a library tells."""
    capacity: int | None = None
    """Limit that was asked for; None when the lowest peak was."""
    alignment: int = 1
    note: str | None = None
    """Remark for the reader, for instance that there was no compiler."""
    interrupted: bool = False
    """Whether the user ended the search; the plan is the best one until then."""
    decisions: int = 0
    """Decisions of the exact search: its work, whatever the machine.  No part of what is stored."""

    @property
    def fits(self) -> bool:
        """Whether the peak is within the capacity; True when none was given."""
        return self.capacity is None or self.peak <= self.capacity

    @property
    def impossible(self) -> bool:
        """Whether it is proven that no plan fits the capacity."""
        return self.capacity is not None and self.lower_bound > self.capacity

    @property
    def gap(self) -> float:
        """Distance of the peak from the lower bound, as a fraction of that bound."""
        return (self.peak - self.lower_bound) / self.lower_bound if self.lower_bound else 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON values; :meth:`from_dict` reads them back."""
        return {
            "version": VERSION,
            "peak": self.peak,
            "lower_bound": self.lower_bound,
            "optimal": self.optimal,
            "capacity": self.capacity,
            "alignment": self.alignment,
            "method": self.method,
            "seconds": None if self.seconds is None else round(self.seconds, 6),
            "note": self.note,
            "interrupted": self.interrupted,
            "offsets": dict(self.offsets),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Read :meth:`to_dict`'s values; raises :class:`UsageError` for another version or missing fields."""
        if not isinstance(data, Mapping) or data.get("version") != VERSION:
            raise UsageError(f"this is no memory plan of version {VERSION}")
        try:
            return cls(**{name: value for name, value in data.items() if name != "version"})
        except TypeError as error:
            raise UsageError(f"the memory plan is damaged: {error}") from error
