"""Sizes to suggest: those that agree, found in few questions."""

import math

from hetero_tvm.frontend.suggestions import agreeing


def asked(*conditions, most=200):
    """Agreement by the number of conditions that hold, and what was asked."""
    seen = []

    def agreement(sizes):
        seen.append(dict(sizes))
        held = sum(condition(sizes) for condition in conditions)
        return None if len(seen) > most else math.inf if held == len(conditions) else held

    return agreement, seen


def test_usual_sizes_that_agree_stay():
    agreement, seen = asked(lambda sizes: True)
    assert agreeing({"a": 1, "b": 128}, [3], agreement) == {"a": 1, "b": 128} and len(seen) == 1


def test_one_size_follows_from_others():
    agreement, _ = asked(lambda s: s["mask"] == s["past"] + s["new"])
    found = agreeing({"past": 128, "new": 128, "mask": 224}, [], agreement)
    assert found == {"past": 128, "new": 128, "mask": 256}
    agreement, _ = asked(lambda s: s["mask"] in (1, 7))
    assert agreeing({"mask": 224}, [2, 3, 4, 16], agreement) == {"mask": 7}


def test_several_sizes_follow_one_after_another():
    agreement, seen = asked(lambda s: s["a"] == 5, lambda s: s["b"] == 11, lambda s: s["c"] == 6)
    assert agreeing({"a": 1, "b": 128, "c": 224}, [5, 6], agreement) == {"a": 5, "b": 11, "c": 6}
    assert len(seen) < 60


def test_nothing_that_agrees_leaves_the_best():
    agreement, seen = asked(lambda s: s["a"] == 5, lambda s: False, most=10)
    assert agreeing({"a": 1}, [5, 6], agreement) == {"a": 5} and len(seen) < 10
    agreement, seen = asked(lambda s: False, most=10)
    assert agreeing({"a": 1, "b": 128}, [5, 6], agreement) == {"a": 1, "b": 128} and len(seen) == 11
