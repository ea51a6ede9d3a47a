"""Measured peaks."""

import pytest

from hetero_tvm import host
from hetero_tvm.errors import UsageError


@pytest.mark.thorough
def test_peak_and_bandwidth_are_plausible():
    one = host.measure_peak(1)
    assert 2 < one < 2000  # GFLOP/s of one core of any x86 or Arm machine
    assert 0.3 < host.measure_bandwidth(1) < 1000
    cached = host.measure_caches(1)
    assert cached.nbytes >= 2**18 and 1 < cached.gbs < 10000
    with pytest.raises(UsageError, match="at least 1"):
        host.measure_peak(0)


def test_products_of_few_bits_have_peaks_of_their_own():
    floats, features = host.measure_peak(1), host.cpu_features()
    integers, halves = host.measure_peak(1, "int8"), host.measure_peak(1, "bfloat16")
    if "avx2" in features:
        assert 1.3 * floats < integers < 64 * floats  # 2.4 x with AVX2, 4 x with VNNI, 32 x with tiles
    assert halves > 0.5 * floats  # the faster of both: float32's where there is no instruction
    with pytest.raises(UsageError, match="no peak of 'int4'"):
        host.measure_peak(1, "int4")
