"""Latencies of many calls in numbers that people and comparisons want."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def statistics(milliseconds: Sequence[float] | np.ndarray) -> dict[str, Any]:
    """Figures of calls in the order in which they were made, milliseconds.

    ``jitter_ms`` is the mean difference between one call and the next, ``spread`` the distance between the
    10th and the 90th percentile as a fraction of the median.
    """
    times = np.asarray(milliseconds, dtype=np.float64)
    low, median, high, late = np.percentile(times, [10, 50, 90, 99])
    return {
        "median_ms": float(median),
        "mean_ms": float(times.mean()),
        "p10_ms": float(low),
        "p90_ms": float(high),
        "p99_ms": float(late),
        "min_ms": float(times.min()),
        "max_ms": float(times.max()),
        "jitter_ms": float(np.abs(np.diff(times)).mean()) if len(times) > 1 else 0.0,
        "spread": float((high - low) / median),
        "runs": len(times),
    }
