"""Measured peaks."""

import pytest

from hetero_tvm import host
from hetero_tvm.errors import UsageError


def test_peak_and_bandwidth_are_plausible():
    one = host.measure_peak(1)
    assert 2 < one < 2000  # GFLOP/s of one core of any x86 or Arm machine
    assert 0.3 < host.measure_bandwidth(1) < 1000
    with pytest.raises(UsageError, match="at least 1"):
        host.measure_peak(0)
