"""Counts: when two are equal, and arithmetic with them."""

import onnx

from hetero_tvm.frontend.onnx.counted.tensors import Count, Counted, Step
from hetero_tvm.frontend.onnx.graph.constants import ConstantPool

STEP = Step(onnx.helper.make_node("Reshape", ["x", "s"], ["y"], "node"), 17, {}, ConstantPool(), Counted())


def test_counts_are_equal_by_what_they_are():
    assert Count("a", "one", 5) == Count("a", "another", 5) != Count("b", "one", 5)


def test_a_multiple_divided_is_what_it_was():
    count = Count("a", "n", 5)
    assert STEP.over(STEP.times(count, 6), 6) == count
    assert STEP.over(STEP.times(count, 6), 3) == STEP.times(count, 2)


def test_sums_keep_numbers_and_counts_apart():
    assert STEP.plus(2, 3) == 5
    assert STEP.plus(Count("a", "n", 5)) == Count("a", "n", 5)
    assert STEP.plus(Count("a", "n", 5), 2, Count("b", "m", 4)).most == 11


def test_a_limit_that_is_never_reached_changes_nothing():
    count = Count("a", "n", 5)
    assert STEP.least(count, 7) is count
    assert STEP.least(count, 3).most == 3
