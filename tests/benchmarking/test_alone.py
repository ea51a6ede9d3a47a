"""Measurement of a library alone: a process that cannot says why (figures: tests/test_bench.py)."""

import numpy as np
import pytest

from hetero_tvm.benchmarking.alone import Settings, _undisturbed, measure
from hetero_tvm.errors import HeteroTVMError


def test_a_process_that_fails_says_why(tmp_path):
    with pytest.raises(HeteroTVMError, match="model.so cannot be measured: .*does not exist\n") as caught:
        measure(tmp_path / "model.so", {"x": np.zeros(1)}, Settings(0.01))
    assert caught.value.hint == "name the exported .so or its folder"


def test_windows_that_others_took_do_not_count():
    """Nine windows of 200 calls a second and one that stood still; of few calls, the rate of all."""
    marks = [(float(n), 200 * n) for n in range(10)] + [(19.0, 1900)]
    assert _undisturbed(marks, 100.0) == pytest.approx(200.0)
    assert _undisturbed([(float(n), 3 * n) for n in range(10)], 2.5) == 2.5
