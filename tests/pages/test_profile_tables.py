"""Comparison of two profiles."""

import io

import pytest

from hetero_tvm.host.terminal import console
from hetero_tvm.pages.profile_tables import compare_profiles, show_comparison, show_profile


def document(call, **kernels):
    return {"call_ms": call, "kernels": [{"kernel": name, "ms": ms} for name, ms in kernels.items()]}


def test_the_largest_change_comes_first():
    rows = compare_profiles(document(3, a=1.0, b=2.0), document(4, a=1.5, c=2.0))
    assert [(row["kernel"], row["change_ms"]) for row in rows] == [("b", -2.0), ("c", 2.0), ("a", 0.5)]
    assert rows[1]["before_ms"] is None and rows[0]["now_ms"] is None


def test_noise_is_not_worth_a_row():
    stream = io.StringIO()
    show_comparison(document(100, a=50.0, b=50.0), document(101, a=50.5, b=50.5), console(stream), 5)
    assert "no kernel changed by more than 2%" in stream.getvalue()
    assert "another model" not in stream.getvalue()


def test_profiles_of_different_models_say_so():
    stream = io.StringIO()
    before = {**document(100, a=50.0), "model": "bert"}
    show_comparison(before, {**document(100, a=50.0), "model": "vit"}, console(stream), 5)
    assert "the earlier profile is of another model: bert" in stream.getvalue()


@pytest.mark.parametrize("call, disturbed", [(3.2, False), (9.0, True)])
def test_a_call_that_others_stopped_says_so(call, disturbed):
    row = {
        "calls": 1,
        "share": 0.5,
        "gflops": 1.0,
        "gbs": 1.0,
        "roofline": 0.5,
        "balance": None,
        "record": "",
    }
    shown = {
        **{"model": "m", "threads": 2, "runs": 9, "call_ms": call, "bandwidth_gbs": 20.0},
        "peaks": {"float32": 100.0, "int8": 400.0},
        "kernels": [{**row, "kernel": name, "ms": 1.5} for name in "ab"],
    }
    stream = io.StringIO()
    show_profile(shown, [("/a", 0, 1.5e-3)], console(stream), 5)
    said = stream.getvalue()
    assert ("calls were disturbed" in said) == disturbed and "50.0%" in said  # of 3 ms, whatever a call took
    assert "100 GFLOP/s in float32, 400 GFLOP/s in int8, 20.0 GB/s" in said
    assert "Winograd" not in said
    shown["kernels"][0]["roofline"] = 1.9
    show_profile(shown, [], console(stream), 5)
    assert "fewer products than are counted (Winograd)" in stream.getvalue()
