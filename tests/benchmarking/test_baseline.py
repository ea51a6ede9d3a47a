"""Comparison with an earlier measurement."""

import pytest

from hetero_tvm.benchmarking.baseline import compare_documents, read_baseline
from hetero_tvm.errors import UsageError


def document(median, p10, rate=None, best=None, **more):
    found = {"model": "m", "threads": 2, "runtimes": [{"median_ms": median, "p10_ms": p10}], **more}
    if rate is not None:
        found["streams"] = [{"streams": 2, "per_second": rate}]
    if best is not None:
        found["streams"][0]["undisturbed_per_second"] = best
    return found


@pytest.mark.parametrize(
    ("now", "slower", "faster"),
    [
        ((10.4, 9.4), False, False),
        ((12.0, 11.0), True, False),
        ((12.0, 9.1), False, False),  # the fast calls are as before: noise
        ((8.0, 7.0), False, True),
    ],
)
def test_slower_is_what_both_the_median_and_the_fast_calls_say(now, slower, faster):
    (change,), warnings = compare_documents(document(10.0, 9.0), document(*now), 0.05)
    assert (change.slower, change.faster) == (slower, faster) and warnings == []


def test_throughput_counts_as_time():
    changes, _ = compare_documents(document(10, 9, 100.0), document(10, 9, 50.0), 0.05)
    assert changes[1].ratio == 2.0 and changes[1].slower and "2 streams" in str(changes[1])


def test_large_numbers_have_no_exponents():
    changes, _ = compare_documents(document(23456.7, 9, 12345.6), document(21000.0, 9, 9999.9), 0.05)
    assert "23457 -> 21000" in str(changes[0]) and "12346 -> 10000" in str(changes[1])


@pytest.mark.parametrize(
    ("was", "now", "slower"),
    [
        ((100.0, 110.0), (50.0, 108.0), False),
        ((100.0, 110.0), (50.0, 60.0), True),
        ((100.0,), (50.0, 99.0), False),
    ],
)
def test_streams_that_others_disturbed_are_no_slower(was, now, slower):
    """Also beside a document without their best windows."""
    changes, _ = compare_documents(document(10, 9, *was), document(10, 9, *now), 0.05)
    assert changes[1].slower is slower


def test_what_differs_besides_is_told():
    other = document(10, 9, machine={"model_name": "B"})
    other["threads"] = 4
    _, warnings = compare_documents(document(10, 9, machine={"model_name": "A"}), other, 0.05)
    assert any("A, this is B" in text for text in warnings)
    assert any("number of threads" in text for text in warnings)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"runtimes": [{"status": "failed"}]}', '{"runtimes": 3}'])
def test_what_is_no_document_is_refused(tmp_path, text):
    path = tmp_path / "old.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="--baseline") as caught:
        read_baseline(path)
    assert "bench model.so --json" in caught.value.hint
