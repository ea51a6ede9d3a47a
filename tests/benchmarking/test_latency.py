"""Figures of latencies."""

import numpy as np
import pytest

from hetero_tvm.benchmarking.latency import statistics


def test_figures():
    found = statistics(np.arange(1, 102, dtype=float))  # 1 to 101
    assert found["median_ms"] == 51 and found["p90_ms"] == 91 and found["p99_ms"] == 100
    assert found["min_ms"] == 1 and found["max_ms"] == 101 and found["mean_ms"] == 51
    assert found["jitter_ms"] == 1 and found["runs"] == 101
    assert found["spread"] == pytest.approx(80 / 51)


def test_one_call_has_no_jitter():
    assert statistics([2.5])["jitter_ms"] == 0.0 and statistics([2.5])["p99_ms"] == 2.5
