"""Accesses to banks, against an enumeration of their addresses."""

import itertools
import math
import random

import pytest

from hetero_tvm.machines.npu.banks import bank_cycles, granules
from hetero_tvm.machines.npu.spec import BANK_BYTES


def pieces(extents, strides, width):
    """Bank-wide pieces of the runs that an access makes one after the other; repeated bytes count once."""
    moving = [(n, s) for n, s in zip(extents, strides, strict=True) if s]
    count, begin, end = 0, 0, None
    for index in itertools.product(*(range(n) for n, _ in moving)):
        at = sum(i * s for i, (_, s) in zip(index, moving, strict=True))
        if at != end:
            count += 0 if end is None else math.ceil((end - begin) / BANK_BYTES)
            begin = at
        end = at + width
    return count + math.ceil((end - begin) / BANK_BYTES)


def access(rng):
    """Nested dimensions, some of them contiguous, some repeated."""
    width = rng.choice([1, 2, 4])
    dims, pitch = [], width
    for _ in range(rng.randint(1, 4)):
        n = rng.choice([1, 2, 3, 5, 8, 17])
        stride = 0 if rng.random() < 0.2 else pitch * rng.choice([1, 1, 2, 3])
        dims.insert(0, (n, stride))
        pitch = max(pitch, n * stride)
    return [n for n, _ in dims], [s for _, s in dims], width


def test_granules_are_those_of_the_runs():
    rng = random.Random(0)
    for _ in range(300):
        extents, strides, width = access(rng)
        assert granules(extents, strides, width) == pieces(extents, strides, width), (extents, strides, width)


# Granules from run to run, and bytes of a run, which neither overlap nor continue each other.
RUNS = [(step, run) for step in (1, 2, 3, 6, 8, 16, 24) for run in (2, 32, 40, 96) if step * BANK_BYTES > run]


@pytest.mark.parametrize("banks", [2, 8, 16])
@pytest.mark.parametrize("step, run", RUNS)
def test_runs_at_whole_granules_use_the_banks_that_they_reach(banks, step, run):
    rows, stride = 48, step * BANK_BYTES
    per_run = math.ceil(run / BANK_BYTES)
    reached = {(i * step + j) % banks for i in range(rows) for j in range(per_run)}
    cycles = bank_cycles((rows, run // 2), (stride, 2), 2, banks * BANK_BYTES)
    assert cycles == pytest.approx(rows * per_run / len(reached))


def test_other_steps_spread_over_all_banks():
    assert bank_cycles((64, 16), (66, 2), 2, 512) == 64 / 16
    assert bank_cycles((64, 64), (0, 2), 2, 512) == 4 / 16
