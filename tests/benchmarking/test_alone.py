"""Measurement of a library alone: a process that cannot says why (figures: tests/test_bench.py)."""

import numpy as np
import pytest

from hetero_tvm.benchmarking.alone import Settings, measure
from hetero_tvm.errors import HeteroTVMError


def test_a_process_that_fails_says_why(tmp_path):
    with pytest.raises(HeteroTVMError, match="model.so cannot be measured: .*does not exist"):
        measure(tmp_path / "model.so", {"x": np.zeros(1)}, Settings(0.01))
