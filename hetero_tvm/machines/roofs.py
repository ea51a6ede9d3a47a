"""Rooflines: peaks of a machine, for scheduling trials and for reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic

from hetero_tvm.errors import HeteroTVMError
from hetero_tvm.host.peaks import FLOAT32, CacheRoof, least_seconds


@dataclass(frozen=True)
class Roofs:
    """Peaks of a machine: GFLOP/s of float32 FMAs, GB/s from main memory; None where unknown.

    Parameters
    ----------
    others : peaks of other kinds of arithmetic that kernels use (``int8``, ``bfloat16``).
    cached : what the caches deliver; None: not measured, or there are none.
    """

    peak_gflops: float | None
    bandwidth_gbs: float | None
    others: Mapping[str, float] = field(default_factory=dict)
    cached: CacheRoof | None = None

    def peak(self, arithmetic: str = FLOAT32) -> float | None:
        """Peak of a kind of arithmetic; float32's where no other was measured."""
        return self.others.get(arithmetic, self.peak_gflops)

    def least_seconds(
        self, flops: int, nbytes: int, arithmetic: str = FLOAT32, weight_bytes: int = 0
    ) -> float | None:
        """Least seconds of work (see :func:`hetero_tvm.host.peaks.least_seconds`); None where unknown."""
        peak = self.peak(arithmetic)
        if peak is None or self.bandwidth_gbs is None:
            return None
        return least_seconds(flops, nbytes, weight_bytes, peak, self.bandwidth_gbs, self.cached)

    def or_higher(self, other: Roofs) -> Roofs:
        """The higher peaks of both: whatever disturbs a measurement of a peak can only lower it."""
        kinds = sorted({*self.others, *other.others})
        return Roofs(
            max(filter(None, [self.peak_gflops, other.peak_gflops]), default=None),
            max(filter(None, [self.bandwidth_gbs, other.bandwidth_gbs]), default=None),
            {kind: max(self.others.get(kind, 0.0), other.others.get(kind, 0.0)) for kind in kinds},
            max(filter(None, [self.cached, other.cached]), key=lambda one: one.gbs, default=None),
        )


def measure(threads: int, arithmetics: Iterable[str] = ()) -> Roofs:
    """Measure the roofs of ``threads`` cores (0.25 s); the machine should be idle.

    Parameters
    ----------
    arithmetics : kinds beside float32 whose peaks are wanted, 0.1 s each.
    """
    from hetero_tvm import host

    others = sorted(set(arithmetics) - {FLOAT32})
    try:
        return Roofs(
            host.measure_peak(threads),
            host.measure_bandwidth(threads),
            {kind: host.measure_peak(threads, kind) for kind in others},
            host.measure_caches(threads),
        )
    except (HeteroTVMError, OSError, AttributeError):  # no C++ compiler: reports go without roofs
        return Roofs(None, None)


_FRESH = 60.0
"""Seconds for which the roofs of a machine are not measured again."""

_measured: dict[tuple[int, frozenset[str]], tuple[float, Roofs]] = {}
"""Time and result of the last measurement, by threads and kinds of arithmetic."""


def recent(threads: int, arithmetics: Iterable[str] = ()) -> Roofs:
    """Roofs that this process measured less than a minute ago, or those that :func:`measure` finds now.

    Searches follow one another, one for each implementation of an operator, and a measurement reads a buffer
    of four times the last cache.  Parameters are those of :func:`measure`.
    """
    kinds = frozenset(arithmetics) - {FLOAT32}
    when, found = _measured.get((threads, kinds), (0.0, None))
    if found is None or monotonic() - when > _FRESH:
        found = measure(threads, *([kinds] if kinds else []))
        _measured[threads, kinds] = monotonic(), found
    return found
