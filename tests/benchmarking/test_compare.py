import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest

from hetero_tvm import host
from hetero_tvm.benchmarking import compare as module
from hetero_tvm.benchmarking.compare import Entry, Options, Result, compare, compare_entries
from hetero_tvm.benchmarking.worker import _short, _thread_times, _time

FILES = {"library": None, "model": None, "clean_model": None}


def test_a_runtime_that_fails_is_a_row_with_a_reason():
    """Neither worker has its files: each says so, and nothing is raised."""
    options = Options(host.available_cores()[:1], rounds=1, seconds=0.01, pause=0.0)
    results = compare(["hetero_tvm", "nonsense"], {"x": np.zeros(3, "float32")}, FILES, options)
    assert [result.status for result in results] == ["failed", "failed"]
    assert "KeyError" in results[1].reason
    assert results[1].to_json() == {"name": "nonsense", "status": "failed", "reason": results[1].reason}


def test_one_runtime_may_have_several_entries(tmp_path, monkeypatch):
    asked = []

    def worker(entry, folder, options):
        asked.append((entry.runtime, entry.files["model"]))
        one = SimpleNamespace(result=Result(entry.name, "failed"), runtime=entry.runtime, alive=False)
        return SimpleNamespace(**vars(one), stop=lambda: None)

    monkeypatch.setattr(module, "_Worker", worker)
    files = [{**FILES, "model": tmp_path / name} for name in "ab"]
    entries = [Entry("one", "peer", files[0]), Entry("other", "peer", files[1])]
    results = compare_entries(entries, {}, Options((0,), rounds=1))
    assert [result.name for result in results] == ["one", "other"]
    assert asked == [("peer", tmp_path / "a"), ("peer", tmp_path / "b")]


def test_a_worker_that_dies_costs_its_row_only(tmp_path, monkeypatch):
    started = []
    popen = module.subprocess.Popen

    def start(*args, **kwargs):
        # A stand-in that answers once and then waits.
        started.append(popen(["sh", "-c", 'echo \'{"version": "1"}\'; cat > /dev/null'], **kwargs))
        return started[-1]

    monkeypatch.setattr(module.subprocess, "Popen", start)
    worker = module._Worker(Entry("peer", "peer", FILES), tmp_path, Options((0,)))
    assert worker.alive and worker.result.version == "1"
    os.kill(started[0].pid, signal.SIGKILL)
    worker.turn(0.01)
    assert not worker.alive and "exit status -9" in worker.result.reason


def test_ratios_and_differences_refer_to_us():
    """The machine is three times slower in the second round: the ratio does not see it."""
    ours, peer = Result("hetero_tvm", turns=[[1.0], [3.0]]), Result("peer", turns=[[2.0], [6.0]])
    workers = []
    for result, outputs in ((ours, [np.ones(3)]), (peer, [np.array([1.0, 1.5, 1.0])])):
        worker = object.__new__(module._Worker)
        worker.result, worker.runtime = result, result.name
        worker.outputs = lambda outputs=outputs: outputs
        workers.append(worker)
    module._finish(workers)
    assert (ours.ratio, peer.ratio) == (1.0, 0.5)
    assert peer.ratio_p10 == pytest.approx(0.5)
    assert (ours.max_abs_difference, peer.max_abs_difference) == (0.0, 0.5)
    assert peer.max_rel_difference == pytest.approx(1 / 3)
    row = peer.to_json()
    assert (row["median_ms"], row["min_ms"], row["runs"]) == (4.0, 2.0, 2)


def test_difference_of_odd_outputs():
    infinite = [np.array([-np.inf, 1.0])]
    assert module._difference(infinite, infinite) == (0.0, 0.0)
    assert module._difference([np.zeros(2)], [np.zeros(3)])[0] == np.inf
    assert module._difference([np.zeros(2)], [np.full(2, np.nan)])[0] == np.inf
    assert module._difference([np.zeros((0, 3))], [np.zeros((0, 3))]) == (0.0, 0.0)
    assert module._difference([np.array(2.0)], [np.array(2.5)]) == (0.5, 0.2)


class Clock:
    """A clock that only calls advance."""

    def __init__(self, monkeypatch):
        self.now, self.calls = 0.0, 0
        clock = SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr("hetero_tvm.benchmarking.worker.time", clock)

    def call_of(self, seconds):
        def call():
            self.now += seconds
            self.calls += 1

        return call


def test_timing_warms_up_and_takes_at_least_three(monkeypatch):
    clock = Clock(monkeypatch)
    assert _time(clock.call_of(0.002), 0.001) == pytest.approx([2.0] * 3)
    assert clock.calls == 1 + 3
    assert len(_time(clock.call_of(0.0001), 0.00105)) == 11


def test_timing_gives_up_three_calls_of_a_very_slow_runtime(monkeypatch):
    clock = Clock(monkeypatch)
    assert _time(clock.call_of(1.0), 0.001) == pytest.approx([1000.0])


def test_thread_times_see_this_thread():
    assert os.getpid() in _thread_times()


def test_long_errors_are_cut():
    assert _short(ValueError("a\nb   c")) == "ValueError: a b c"
    assert len(_short(ValueError("x" * 9999))) < 450
