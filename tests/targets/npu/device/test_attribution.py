"""Attribution of time to operators that overlap."""

import numpy as np
import pytest

from hetero_tvm.targets.npu.device.attribution import attribute


def test_overlap_is_divided_and_gaps_belong_to_who_begins_next():
    #   0: 0..10 and 20..30;  1: 5..15;  whole 40
    shares, active = attribute([(0, 10, 0), (5, 15, 1), (20, 30, 0)], 3, 40.0)
    assert shares == [5 + 2.5 + 5 + 10 + 10, 2.5 + 5, 0.0]
    assert active == [10 + 10 + 10, 10, 0.0]


def test_shares_add_up_and_no_queue_works_longer_than_its_operator_is_active():
    rng = np.random.default_rng(3)
    intervals = []
    busy = np.zeros((3, 8))
    for queue in range(3):
        time = 0.0
        for _ in range(200):
            start = time + rng.exponential(2) * (rng.random() < 0.5)
            time = start + rng.exponential(5)
            owner = int(rng.integers(8))
            intervals.append((start, time, owner))
            busy[queue, owner] += time - start
    whole = max(end for _, end, _ in intervals) + 3
    shares, active = attribute(intervals, 8, whole)
    assert sum(shares) == pytest.approx(whole)
    assert (busy.max(0) <= np.array(active) + 1e-6).all()
    assert all(cycles > 0 for cycles in shares)


def test_nothing_ran():
    assert attribute([], 2, 7.0) == ([0.0, 0.0], [0.0, 0.0])
