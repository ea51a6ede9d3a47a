"""A turn of a runtime: times of its calls, and what its device counted in them."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from hetero_tvm.benchmarking.compare import Result
from hetero_tvm.benchmarking.runtimes import Prepared
from hetero_tvm.benchmarking.worker import _turn
from hetero_tvm.runtime import DeviceCost

COST = DeviceCost("npu", 0.0005, 0.002, {"cycles": 500.0}, "NPU edge f16, simulated: 500 cycles", True)


@pytest.fixture
def call(monkeypatch):
    """A call of 3 ms, by a clock that only calls advance."""
    now = [0.0]
    monkeypatch.setattr("hetero_tvm.benchmarking.worker.time", SimpleNamespace(perf_counter=lambda: now[0]))

    def call():
        now[0] += 0.003
        return [np.zeros(1)]

    return call


def test_without_a_device(call):
    answer = _turn(Prepared(call), 0.001)
    assert answer["milliseconds"] == pytest.approx([3.0] * 3)
    assert answer["device_milliseconds"] == [] and answer["device_cost"] is None


def test_with_a_device_that_counts(call):
    """2 of 3 ms are inside a simulator that stands for half a millisecond of the device."""
    answer = _turn(Prepared(call, lambda: COST), 0.001)
    assert DeviceCost(**answer["device_cost"]) == COST
    inside = answer["device_milliseconds"]
    assert inside == pytest.approx([2.0] * 3)
    host = [whole - part for whole, part in zip(answer["milliseconds"], inside, strict=True)]
    result = Result("hetero_tvm", turns=[answer["milliseconds"]], device_cost=COST, host_milliseconds=host)
    found = result.to_json()
    assert found["median_ms"] == pytest.approx(3.0)
    assert found["npu"] == pytest.approx({"cycles": 500, "npu_ms": 0.5, "host_ms": 1.0, "latency_ms": 1.5})
    assert result.compared == pytest.approx([1.5])
    assert "npu" not in dataclasses.replace(result, device_cost=None).to_json()
