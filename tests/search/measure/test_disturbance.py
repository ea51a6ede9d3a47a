"""What the scheduler says about time lost to others, from the files that the kernel shows."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hetero_tvm.search.measure.disturbance import Disturbance


def spin(seconds):
    begin = os.times().user
    while os.times().user - begin < seconds:
        pass


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel keeps no such statistics")
def test_waiting_for_a_core_is_lost():
    """Two processes on one core each wait for about half of the time."""
    core = min(os.sched_getaffinity(0))
    allowed = os.sched_getaffinity(0)
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(other.pid, {core})
        os.sched_setaffinity(0, {core})
        found = Disturbance([threading.get_native_id()], [core])
        before = found.lost()
        spin(0.1)
        assert found.lost() - before > 0.02
        found.close()
    finally:
        os.sched_setaffinity(0, allowed)
        other.kill()
        other.wait()


def test_threads_and_files_that_are_gone_lose_nothing(monkeypatch):
    found = Disturbance([1 << 22], [])
    assert found.lost() == 0
    found.close()
    monkeypatch.setattr(os, "open", lambda *args: (_ for _ in ()).throw(FileNotFoundError()))
    hidden = Disturbance([threading.get_native_id()], [0])
    assert hidden.lost() == 0
    hidden.close()


def test_stolen_cores_count(monkeypatch):
    lines = b"cpu 0 0 0 0 0 0 0 900\ncpu0 1 2 3 4 5 6 7 100 0\ncpu1 1 2 3 4 5 6 7 50 0\nintr 1\n"
    found = Disturbance([], [0])
    monkeypatch.setattr(os, "pread", lambda *args: lines)
    assert found.lost() == pytest.approx(100 / os.sysconf("SC_CLK_TCK"))
