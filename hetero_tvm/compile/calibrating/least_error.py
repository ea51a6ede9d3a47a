"""Ranges of least squared error: what 8 bits lose beyond a range against what they lose inside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

BINS = 2048
"""Bins of a tensor's histogram."""
_SHARES = np.linspace(0.2, 1.0, 17)
"""Shares of either end of the whole range that are tried."""
_LEVELS = 255

Values = Callable[[Mapping[str, np.ndarray]], Iterable[tuple[str, np.ndarray]]]
"""Values of all tensors, by name, for one sample."""


def least_error_ranges(
    samples: Sequence[Mapping[str, np.ndarray]], values: Values
) -> dict[str, tuple[float, float]]:
    """(low, high) of every tensor, zero between them, that rounds to 8 bits with the least squared error.

    ``values`` is called twice for every sample: for the whole ranges, and for the histograms.
    """
    ends: dict[str, tuple[float, float]] = {}
    for sample in samples:
        for name, value in values(sample):
            low, high = ends.get(name, (0.0, 0.0))
            finite = value[np.isfinite(value)]
            ends[name] = (
                min(low, float(finite.min(initial=0))),
                max(high, float(finite.max(initial=0))),
            )
    counts = {name: np.zeros(BINS) for name in ends}
    for sample in samples:
        for name, value in values(sample):
            if ends[name][0] < ends[name][1]:
                counts[name] += np.histogram(value[np.isfinite(value)], BINS, ends[name])[0]
    return {name: least_error_range(counts[name], *ends[name]) for name in ends}


def least_error_range(counts: np.ndarray, low: float, high: float) -> tuple[float, float]:
    """The range within (low, high) of least squared error for a histogram over it of equal bins.

    Rounding inside a range has the error of a uniform distribution, ``step**2 / 12``; what lies outside has
    its distance from the end.
    """
    if not low < high:
        return low, high
    width = (high - low) / len(counts)
    centers = low + width * (np.arange(len(counts)) + 0.5)
    best, least = (low, high), np.inf
    for a in _SHARES if low < 0 else [1.0]:
        for b in _SHARES if high > 0 else [1.0]:
            first, last = a * low, b * high
            beyond = np.maximum(first - centers, 0) + np.maximum(centers - last, 0)
            inside = counts[beyond == 0].sum()
            error = inside * ((last - first) / _LEVELS) ** 2 / 12 + (counts * beyond**2).sum()
            if error < least:
                best, least = (float(first), float(last)), error
    return best
