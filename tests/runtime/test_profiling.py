"""Figures of a profile from events that are made up, so that every number is known."""

import dataclasses
import json

import numpy as np
import pytest

from hetero_tvm.errors import UsageError
from hetero_tvm.host.peaks import CacheRoof
from hetero_tvm.runtime.manifest import Manifest
from hetero_tvm.runtime.observing import SPAN, Event, Observed
from hetero_tvm.runtime.profiling import (
    CallProfile,
    Profile,
    _balance,
    _between,
    _calls,
    _kernels,
    _within,
    profile_calls,
)
from hetero_tvm.runtime.signature import Signature

MANIFEST = Manifest(
    "m",
    Signature((), ()),
    kernels=[
        {
            "kernel": "product",
            "symbols": ["product1", "product_in_place"],
            "flops": 1000,
            "bytes": 100,
            "nodes": ["/a"],
            "call_nodes": [["/a"], ["/b", "/c"]],
            "space": "cpu.matmul",
            "record": "default",
        }
    ],
)


def observed(scale=1, hook=10):
    events = [
        Event("vm.builtin.alloc_tensor", 0, 5),
        Event("product1", 10, 10 + 100 * scale + hook),
        Event("other", 1000, 1050 + hook),
        Event("product_in_place", 2000, 2000 + 300 * scale + hook),
    ]
    spans = np.array([(20, 60, 0, 0, 7, 2), (20, 100, 0, 1, 8, 2)], SPAN)
    return Observed(0, 5000, tuple(events), spans, hook)


def test_calls_are_medians_without_what_looking_costs():
    calls = _calls([observed(1), observed(2), observed(9)], MANIFEST, 2)
    assert [call.seconds for call in calls] == pytest.approx([200e-9, 50e-9, 600e-9])
    assert [call.nodes for call in calls] == [("/a",), (), ("/b", "/c")]
    assert [call.kernel for call in calls] == ["product", "other", "product"]
    assert calls[0].balance == pytest.approx(120 / (2 * 80)) and calls[1].balance is None


@pytest.mark.parametrize(
    "seconds, between, most, expected",
    [
        ([1, 2, 3], 1, 7, [1, 2, 3, 1]),
        ([1, 2, 3], 1, 10, [1, 2, 3, 1]),
        ([1, 2, 3], 2, 4, [0.5, 1, 1.5, 1]),
        ([2], 0, 1, [1, 0]),
        ([], 0, 1, [0]),
    ],
)
def test_kernels_take_no_longer_than_the_call_that_nobody_looks_at(seconds, between, most, expected):
    calls, rest = _within([CallProfile(str(one), (), one) for one in seconds], between, most)
    assert [*(call.seconds for call in calls), rest] == pytest.approx(expected)


def test_kernels_stand_under_the_roofline():
    kernels = _kernels(
        _calls([observed()], MANIFEST, 2), MANIFEST, {"float32": 10.0, "int8": 40.0}, bandwidth=1.0
    )
    product, other = kernels
    assert (product.name, product.calls) == ("product", 2)
    assert product.gflops == pytest.approx(2000 / 400) and product.gbs == pytest.approx(200 / 400)
    assert product.roofline == pytest.approx(2 * 100 / 400)  # 100 ns by flops and by bytes
    assert other.gflops is None and other.roofline is None


def test_what_lies_in_caches_has_their_roof():
    def roofline(cached, **row):
        manifest = dataclasses.replace(MANIFEST, kernels=[{**MANIFEST.kernels[0], "bytes": 1000, **row}])
        kernels = _kernels(_calls([observed()], manifest, 2), manifest, {"float32": 100.0}, 1.0, cached)
        return kernels[0].roofline / (2 / 400)

    cached = CacheRoof(nbytes=2000, gbs=10.0)
    assert roofline(None, weight_bytes=0) == pytest.approx(1000)
    assert roofline(cached, weight_bytes=0) == pytest.approx(100)
    assert roofline(cached) == pytest.approx(100)  # all weights of the library stay in the cache
    weights = {"weight_bytes": 900, "calls": 3}
    assert roofline(cached, **weights) == pytest.approx(900)
    assert roofline(CacheRoof(999, 10.0), **weights) == pytest.approx(1000)


def test_a_kernel_of_integers_stands_under_their_roof():
    integers = dataclasses.replace(
        MANIFEST, kernels=[{**MANIFEST.kernels[0], "arithmetic": "int8", "bytes": 1}]
    )
    calls, peaks = _calls([observed()], integers, 2), {"float32": 10.0, "int8": 40.0}
    assert _kernels(calls, integers, peaks, 1.0)[0].roofline == pytest.approx(2 * 25 / 400)
    # A roof that nobody could measure is that of float32.
    assert _kernels(calls, integers, {"float32": 10.0}, 1.0)[0].roofline == pytest.approx(2 * 100 / 400)


def test_what_no_kernel_took_is_between_them():
    # Each of four events adds 10 ns around itself, and the one that is no kernel 10 ns inside.
    assert _between(observed()) == pytest.approx((5000 - 110 - 60 - 310 - 5 * 10) / 1e9)
    assert _between(observed(hook=2000)) == 0


def test_a_thread_that_does_nothing_halves_the_balance():
    spans = np.array([(0, 100, 0, 0, 7, 1)], SPAN)
    assert _balance(spans, Event("k", 0, 100), 2) == pytest.approx(0.5)
    assert _balance(spans, Event("k", 200, 300), 2) is None and _balance(spans, Event("k", 0, 100), 1) is None


@pytest.mark.parametrize("seconds", [-1, 0, "x", True, float("nan")])
def test_seconds_are_a_positive_number(seconds):
    with pytest.raises(UsageError, match="seconds must be a positive number"):
        profile_calls(None, MANIFEST, lambda: pytest.fail("it was called"), 1, seconds)


def test_a_trace_goes_to_a_path_or_its_text(tmp_path):
    profile = Profile("m", 1, 1.0, 1.0, 5, [], [], last=observed())
    profile.write_trace(str(tmp_path / "trace.json"))
    assert len(json.loads((tmp_path / "trace.json").read_text())["traceEvents"]) > 2
    for wrong in (tmp_path, tmp_path / "none" / "trace.json", None):
        with pytest.raises(UsageError, match="no trace can be written"):
            profile.write_trace(wrong)
