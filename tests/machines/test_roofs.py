"""Rooflines: the bound of a kernel, and peaks that a disturbed measurement must not lower."""

import pytest

from hetero_tvm import host
from hetero_tvm.errors import NativeBuildError
from hetero_tvm.host.peaks import CacheRoof
from hetero_tvm.machines import roofs
from hetero_tvm.machines.roofs import Roofs


def test_the_slower_of_arithmetic_and_traffic():
    machine = Roofs(peak_gflops=100.0, bandwidth_gbs=10.0)
    assert machine.least_seconds(flops=200_000_000_000, nbytes=10_000_000_000) == pytest.approx(2.0)
    assert machine.least_seconds(flops=100_000_000_000, nbytes=30_000_000_000) == pytest.approx(3.0)


@pytest.mark.parametrize("machine", [Roofs(None, 10.0), Roofs(100.0, None), Roofs(None, None)])
def test_an_unknown_peak_bounds_nothing(machine):
    assert machine.least_seconds(1, 1) is None


def test_the_higher_peaks_of_two_measurements():
    assert Roofs(100.0, 8.0).or_higher(Roofs(90.0, 10.0)) == Roofs(100.0, 10.0)
    assert Roofs(None, 8.0).or_higher(Roofs(90.0, None)) == Roofs(90.0, 8.0)
    assert Roofs(None, None).or_higher(Roofs(None, None)) == Roofs(None, None)


def test_what_kernels_pass_on_may_lie_in_a_cache_and_weights_come_from_memory():
    machine = Roofs(1e6, 10.0, cached=CacheRoof(nbytes=1_000_000, gbs=100.0))
    assert machine.least_seconds(1, 900_000) == pytest.approx(9e-6)
    assert machine.least_seconds(1, 900_000, weight_bytes=800_000) == pytest.approx(80e-6)
    assert machine.least_seconds(1, 900_000, weight_bytes=1_000) == pytest.approx(9e-6)
    assert machine.least_seconds(1, 2_000_000) == pytest.approx(200e-6)  # more than the cache holds
    slow = Roofs(1e6, 10.0, cached=CacheRoof(nbytes=1_000_000, gbs=5.0))  # a measurement beside other load
    assert slow.least_seconds(1, 900_000) == pytest.approx(90e-6)
    assert machine.or_higher(slow).cached == machine.or_higher(Roofs(1.0, 1.0)).cached == machine.cached


def test_other_arithmetic_has_its_own_peak():
    machine = Roofs(100.0, 10.0, {"int8": 400.0})
    assert machine.least_seconds(400_000_000_000, 1, "int8") == pytest.approx(1.0)
    assert machine.least_seconds(400_000_000_000, 1, "bfloat16") == pytest.approx(4.0)  # not measured
    higher = machine.or_higher(Roofs(90.0, 8.0, {"int8": 380.0, "bfloat16": 200.0}))
    assert higher == Roofs(100.0, 10.0, {"int8": 400.0, "bfloat16": 200.0})


def test_other_peaks_are_measured_where_they_are_wanted(monkeypatch):
    peaks = {"float32": 50.0, "int8": 200.0}
    monkeypatch.setattr(host, "measure_peak", lambda threads, kind="float32": threads * peaks[kind])
    monkeypatch.setattr(host, "measure_bandwidth", lambda threads: 12.0)
    monkeypatch.setattr(host, "measure_caches", lambda threads: CacheRoof(1 << 20, 90.0))
    assert roofs.measure(2, {"int8", "float32"}) == Roofs(
        100.0, 12.0, {"int8": 400.0}, CacheRoof(1 << 20, 90.0)
    )


def test_measuring_asks_for_the_threads_of_the_kernels(monkeypatch):
    monkeypatch.setattr(host, "measure_peak", lambda threads: 50.0 * threads)
    monkeypatch.setattr(host, "measure_bandwidth", lambda threads: 10.0 + threads)
    monkeypatch.setattr(host, "measure_caches", lambda threads: CacheRoof(1 << 20, 45.0 * threads))
    assert roofs.measure(2) == Roofs(100.0, 12.0, {}, CacheRoof(1 << 20, 90.0))


def test_without_a_compiler_there_are_no_roofs(monkeypatch):
    def fail(threads):
        raise NativeBuildError("no compiler")

    monkeypatch.setattr(host, "measure_peak", fail)
    assert roofs.measure(2) == Roofs(None, None)


def test_searches_that_follow_one_another_measure_once(monkeypatch):
    """Each implementation of an operator is a search of its own."""
    calls, now = [], [100.0]

    def measure(threads, kinds=()):
        calls.append((threads, *sorted(kinds)))
        return Roofs(100.0 * len(calls), 10.0)

    monkeypatch.setattr(roofs, "measure", measure)
    monkeypatch.setattr(roofs, "monotonic", lambda: now[0])
    monkeypatch.setattr(roofs, "_measured", {})
    first = roofs.recent(2)
    assert roofs.recent(2, {"float32"}) is first and roofs.recent(2, {"int8"}) is not first
    assert roofs.recent(1) is not first
    now[0] += 61.0
    assert roofs.recent(2).peak_gflops == 400.0
    assert calls == [(2,), (2, "int8"), (1,), (2,)]
