"""The ways to multiply 8-bit integers: which machine takes which, and that none saturates."""

import numpy as np
import pytest

from hetero_tvm import host
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.integers.dots import are_pairs_safe, dot_for, wants_pairs_safe


def machine(lanes, *features):
    return CpuModel("m", features=features, lanes=lanes, registers=32 if lanes == 16 else 16)


@pytest.mark.parametrize(
    "here, safe, others",
    [
        (machine(16, "avx512f", "avx512bw", "avx512_vnni"), "dot4", "dot4"),
        (machine(8, "avx2", "avx_vnni"), "dot4", "dot4"),
        (machine(8, "avx2", "avx512_vnni"), "pairs4", "pairs2"),  # VNNI of 512 bits only
        (machine(16, "avx512f", "avx512bw"), "pairs4", "pairs2"),
        (machine(8, "avx2"), "pairs4", "pairs2"),
        (machine(16, "avx512f"), "single", "single"),
        (machine(4), "single", "single"),
    ],
)
def test_choice(here, safe, others):
    assert dot_for(here, pairs_safe=True).name == safe
    assert dot_for(here).name == others
    assert wants_pairs_safe(here) == (safe != others)


def test_pairs_that_are_safe():
    assert are_pairs_safe(np.array([[64], [64], [127], [-128], [-64], [-64]], np.int8))
    assert not are_pairs_safe(np.array([[65], [64]], np.int8))
    assert not are_pairs_safe(np.array([[-65], [-64]], np.int8))
    assert are_pairs_safe(np.array([[100], [0], [100]], np.int8))  # a last one without a partner
    assert are_pairs_safe(np.zeros((0, 3), np.int8))


def runnable() -> list[CpuModel]:
    """Machines of every way that the CPU under test can run."""
    here = host.detect().features
    candidates = [
        machine(16, "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
        machine(8, "avx2", "avx512vl", "avx512_vnni"),
        machine(8, "avx2", "avx_vnni"),
        machine(16, "avx512f", "avx512bw"),
        machine(8, "avx2"),
        machine(8),
        machine(4),
    ]
    return [one for one in candidates if set(one.features) <= set(here)]
