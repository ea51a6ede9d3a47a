"""The fork server's patience: builds have the processor's time, not the clock's."""

import pytest

from hetero_tvm.search.measure import zygote


@pytest.mark.parametrize(
    ("used", "waits"),
    [
        (6.0, [14.0]),  # a neighbour had the cores: the rest of its own time
        (25.0, [0.0]),  # it has had its time
        (0.5, [0.0]),  # it hangs
        (None, [0.0]),  # nobody knows
        ((6.0, 6.1), [14.0, 0.0]),  # it hangs later on
        ((6.0, 19.9), [14.0, 0.5]),
    ],
)
def test_waiting_for_builds(monkeypatch, used, waits):
    times, looks = iter((0.0, 20.0, 34.0)), iter(used if isinstance(used, tuple) else (used,))
    monkeypatch.setattr(zygote, "monotonic", lambda: next(times))
    monkeypatch.setattr(zygote, "processor_seconds", lambda pid: next(looks))
    job = {"build_seconds": 10.0, "candidates": [{}, {}]}
    child = zygote._Child(job, 1, None, 0, 20.0, seen=(zygote.monotonic(), 0.0))
    assert [zygote._wait_for(child) for _ in waits] == waits
