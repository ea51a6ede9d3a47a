"""The ways to multiply 8-bit integers: which machine takes which, and that none saturates."""

import numpy as np
import pytest

from hetero_tvm import host
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.dots import dot_for, safe_pairs, wanted_pairs


def machine(lanes, *features):
    return CpuModel("m", features=features, lanes=lanes, registers=32 if lanes == 16 else 16)


@pytest.mark.parametrize(
    "here, ways",
    [
        (machine(16, "avx512f", "avx512bw", "avx512_vnni"), ("dot4", "dot4", "dot4")),
        (machine(8, "avx2", "avx_vnni"), ("dot4", "dot4", "dot4")),
        (machine(8, "avx2", "avx512_vnni"), ("pairs2", "pairs4", "pairs8")),  # VNNI of 512 bits only
        (machine(16, "avx512f", "avx512bw"), ("pairs2", "pairs4", "pairs8")),
        (machine(8, "avx2"), ("pairs2", "pairs4", "pairs8")),
        (machine(16, "avx512f"), ("single", "single", "single")),
        (machine(4), ("single", "single", "single")),
    ],
)
def test_choice(here, ways):
    assert tuple(dot_for(here, pairs).name for pairs in range(3)) == ways
    assert wanted_pairs(here) == (2 if ways[0] != ways[2] else 0)


def test_a_word_that_is_left_is_taken_alone():
    dot = dot_for(machine(8, "avx2"), 2)
    assert [(way.name, word) for way, word in dot.steps(3, 5)] == [
        ("pairs8", 3),
        ("pairs8", 5),
        ("pairs4", 7),
    ]
    assert [way.name for way, _ in dot.single.steps(0, 2)] == ["pairs4", "pairs4"]


@pytest.mark.parametrize(
    "column, pairs",
    [
        ([64, 64, 127, -128, 64, -64], 1),
        ([65, 64], 0),
        ([-65, -64], 0),
        ([100, 0, 100], 2),  # a last one without a partner
        ([64, 64, 127, 1, -64, -64, -128], 2),
        ([32, 32, 0, 0, 32, 32, 0, 0], 2),
        ([33, 32, 0, 0, 32, 32, 0, 0], 1),
        ([0, 0, -33, -32, 0, 0, -32, -32], 1),
        ([0, 0, 0, 0, 64, 64, 0, 0, 64, 64], 2),  # of other steps
        ([], 2),
    ],
)
def test_pairs_that_are_safe(column, pairs):
    assert safe_pairs(np.array(column, np.int8).reshape(-1, 1)) == pairs


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
