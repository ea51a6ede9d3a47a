"""Comparison of two profiles, and times as text."""

import io

from hetero_tvm.host.terminal import console
from hetero_tvm.runtime.profile_report import compare_profiles, milliseconds, percent, show_comparison


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


def test_numbers():
    assert [milliseconds(v) for v in (12.3456, 0.00123456, 0)] == ["12.346", "0.00123", "0.000"]
    assert [percent(v) for v in (None, 0.5, 1.0, 3.0)] == ["", "50%", "100%", ">100%"]
