"""The verdict on outputs."""

import numpy as np
import pytest

from hetero_tvm.errors import UsageError
from hetero_tvm.reference import Reference, compare


def reference_of(values, own_error=0.0):
    double = np.asarray(values, np.float64)
    return Reference(((double + own_error).astype(np.float32),), (double,), "test")


def test_tolerance_is_twice_the_own_error_or_a_fraction_of_the_largest():
    reference = reference_of([1.0, 100.0])
    assert compare(np.array([1.0, 100.0009], np.float64), reference).ok
    assert not compare(np.array([1.0, 100.0011], np.float64), reference).ok
    wide = reference_of([1.0, 100.0], own_error=0.01)
    assert compare(np.array([1.019, 100.0]), wide).ok
    accuracy = compare(np.array([1.021, 100.0]), wide)
    assert not accuracy.ok and "BEYOND TOLERANCE" in str(accuracy)
    assert accuracy.outputs[0].max_error == pytest.approx(0.021)
    assert accuracy.outputs[0].relative_error == pytest.approx(0.00021)
    assert accuracy.outputs[0].tolerance == pytest.approx(0.02, rel=1e-3)


def test_nan_and_infinity_must_agree():
    reference = reference_of([1.0, np.nan, np.inf, -np.inf])
    assert compare(np.array([1.0, np.nan, np.inf, -np.inf]), reference).ok
    for wrong in ([np.nan, np.nan, np.inf, -np.inf], [1, 0, np.inf, -np.inf], [1, np.nan, -np.inf, -np.inf]):
        accuracy = compare(np.array(wrong, np.float32), reference)
        assert not accuracy.ok
        assert "NaN or infinite" in str(accuracy)


def test_overflow_of_single_precision_is_not_an_error():
    reference = Reference((np.array([np.inf, 1], np.float32),), (np.array([1e39, 1.0]),), "test")
    assert compare(np.array([np.inf, 1], np.float32), reference).ok
    assert not compare(np.array([5.0, 1], np.float32), reference).ok


def test_the_largest_number_of_a_type_is_another_one_in_double():
    """What ``nan_to_num`` makes of infinity: a tolerance made of their distance would allow everything."""
    largest, double = np.finfo(np.float32).max, np.finfo(np.float64).max
    reference = Reference((np.array([largest, 1], np.float32),), (np.array([double, 1.0]),), "test")
    accuracy = compare(np.array([largest, 1], np.float32), reference)
    assert accuracy.ok and np.isfinite(accuracy.outputs[0].tolerance)
    assert not compare(np.array([largest, 2], np.float32), reference).ok
    assert not compare(np.array([5.0, 1], np.float32), reference).ok


def test_integers_are_exact():
    reference = Reference((np.array([3, 4]),), (np.array([3, 4]),), "test")
    assert compare(np.array([3, 4]), reference).ok
    accuracy = compare(np.array([3, 5]), reference)
    assert not accuracy.ok and "1 of 2 integers differ" in str(accuracy)
    assert not compare(np.array([3.0, 4.0]), reference).ok


def test_shapes_and_counts():
    reference = reference_of([1.0, 2.0])
    assert "shape [3]" in str(compare(np.zeros(3), reference))
    with pytest.raises(UsageError, match="2 outputs given, the reference has 1"):
        compare([np.zeros(2), np.zeros(2)], reference)


def test_zero_outputs_and_empty_ones():
    assert compare(np.zeros(3, np.float32), reference_of([0.0, 0.0, 0.0])).ok
    assert not compare(np.full(3, 1e-9), reference_of([0.0, 0.0, 0.0])).ok
    assert compare(np.zeros((0, 2)), reference_of(np.zeros((0, 2)))).ok


def test_bytes_may_lie_on_the_other_side_of_a_half():
    truth = np.arange(200, dtype=np.uint8)
    reference = Reference((truth,), (truth,), "test")
    turned = truth.copy()
    turned[7] += 1
    assert compare([turned], reference).ok
    turned[8] += 2
    assert not compare([turned], reference).ok
    assert not compare([truth + np.uint8(1)], reference).ok  # all of them


def test_places_that_single_precision_sees_otherwise():
    truth, single = np.array([3, 5, 9]), np.array([3, 6, 9])
    reference = Reference((single,), (truth,), "test")
    assert compare([np.array([3, 7, 9])], reference).ok
    assert not compare([np.array([4, 5, 9])], reference).ok


def test_steps_that_rounding_turns_are_not_far_off_while_places_may_be():
    """Eight elements are turned by a step; another one may be so too, but not by twenty."""
    truth, spread = np.arange(300), np.where(np.arange(300) < 8, 1.0, 0.0)
    steps = Reference((truth,), (truth,), "test", (spread,), places=False)
    for away, right in ((1, True), (2, True), (20, False)):
        off = truth.copy()
        off[100] += away
        assert compare([off], steps).ok is right
        assert compare([off], Reference((truth,), (truth,), "test", (spread,))).ok
    single = truth.copy()
    single[5] += 1  # where float32 itself is a step off, a kernel may be, and not by any distance
    off = truth.copy()
    off[5] += 20
    assert not compare([off], Reference((single,), (truth,), "test", places=False)).ok


def test_of_thousands_of_steps_one_may_be_turned():
    truth = np.arange(5000)
    off = truth.copy()
    off[7] += 1
    assert compare([off], Reference((truth,), (truth,), "test", (np.zeros(5000),), places=False)).ok
    assert not compare([off], Reference((truth,), (truth,), "test", (np.zeros(5000),))).ok
    assert not compare([off], Reference((truth,), (truth,), "test", places=False)).ok  # nothing rounds
    off[8] -= 1
    assert not compare([off], Reference((truth,), (truth,), "test", (np.zeros(5000),), places=False)).ok


def test_choices_at_a_lower_precision():
    few, many = np.array([3]), np.arange(20)
    assert not compare([few + 1], Reference((few,), (few,), "test")).ok
    judged = compare([few + 1], Reference((few,), (few,), "test"), least_cosine=0.98)
    assert judged.ok and "1 of 1 integers differ" in str(judged)
    turned = np.where(many < 8, many + 1, many)
    assert compare([turned], Reference((many,), (many,), "test"), least_cosine=0.98).ok
    assert not compare([many + 1], Reference((many,), (many,), "test"), least_cosine=0.98).ok


def test_what_rounding_may_do_is_no_error():
    exact = np.array([1.0, 100.0])
    reference = Reference((exact.astype(np.float32),), (exact,), "test", (np.array([0.0, 0.5]),))
    assert compare(np.array([1.0, 100.9]), reference).ok
    assert not compare(np.array([1.0, 101.1]), reference).ok
    many = np.linspace(1, 2, 100)
    moved = Reference((many.astype(np.float32),), (many,), "test", (np.where(many == 2, 0.5, 0.0),))
    assert compare(many + np.where(many == 2, 0.7, 0.0), moved).ok
    assert not compare(many + 0.3, moved).ok  # as far off as one element may be, but everywhere
    whole = np.array([3, 4])
    unsettled = Reference((whole,), (whole,), "test", (np.array([0.0, 1.0]),))
    assert compare(np.array([3, 5]), unsettled).ok
    assert not compare(np.array([4, 4]), unsettled).ok
    labels = np.zeros(1000, np.int64)
    turning = Reference((labels,), (labels,), "test", (np.arange(1000) < 10,))
    for others, ok in ((10, True), (11, False)):  # of what nearly ties, some more turn in another run
        assert compare(4 * (np.arange(1000) >= 1000 - others), turning).ok == ok


def test_values_that_all_but_vanish_are_told():
    """Random weights may make such a model: every comparison of its numbers passes."""
    tiny = np.full(4, 1e-44)
    faint = compare(tiny.astype("float32"), Reference([tiny.astype("float32")], [tiny], "none"))
    assert faint.ok and "says little" in str(faint)
    plain = compare(np.ones(4, "float32"), Reference([np.ones(4, "float32")], [np.ones(4)], "none"))
    assert plain.ok and "says little" not in str(plain)
