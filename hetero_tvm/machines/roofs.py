"""Rooflines: peaks of a machine, for scheduling trials and for reports."""

from __future__ import annotations

from dataclasses import dataclass

from hetero_tvm.errors import HeteroTVMError


@dataclass(frozen=True)
class Roofs:
    """Peaks of a machine: GFLOP/s of float32 FMAs, GB/s from main memory; None where unknown."""

    peak_gflops: float | None
    bandwidth_gbs: float | None

    def least_seconds(self, flops: int, nbytes: int) -> float | None:
        """Least seconds of work that has ``flops`` operations and moves ``nbytes`` bytes."""
        if self.peak_gflops is None or self.bandwidth_gbs is None:
            return None
        return max(flops / (self.peak_gflops * 1e9), nbytes / (self.bandwidth_gbs * 1e9))

    def or_higher(self, other: Roofs) -> Roofs:
        """The higher peaks of both: whatever disturbs a measurement of a peak can only lower it."""
        return Roofs(
            max(filter(None, [self.peak_gflops, other.peak_gflops]), default=None),
            max(filter(None, [self.bandwidth_gbs, other.bandwidth_gbs]), default=None),
        )


def measure(threads: int) -> Roofs:
    """Measure the roofs of ``threads`` cores (0.2 s); the machine should be idle."""
    from hetero_tvm import host

    try:
        return Roofs(host.measure_peak(threads), host.measure_bandwidth(threads))
    except (HeteroTVMError, OSError, AttributeError):  # no C++ compiler: reports go without roofs
        return Roofs(None, None)
