"""First fit in a given order."""

import random

import pytest

from hetero_tvm.memory import Buffer, Problem, check_plan
from hetero_tvm.memory.greedy import best_of_orders, first_fit
from tests.memory.brute_force import lowest_peak


def test_each_buffer_takes_the_lowest_hole_that_is_free_over_its_life():
    buffers = [Buffer("a", 0, 4, 8), Buffer("b", 0, 2, 4), Buffer("c", 2, 4, 6), Buffer("d", 1, 3, 2)]
    offsets, peak = first_fit(buffers, [1] * 4, range(4))
    # c starts when b ends, so it takes b's place; d lives beside all three.
    assert offsets == [0, 8, 8, 14] and peak == 16
    offsets, _ = first_fit(buffers, [1] * 4, [3, 2, 1, 0])
    assert offsets == [8, 2, 2, 0]


def test_offsets_are_aligned_each_in_its_own_way():
    buffers = [Buffer("a", 0, 1, 3), Buffer("b", 0, 1, 3), Buffer("c", 0, 1, 1)]
    offsets, peak = first_fit(buffers, [1, 8, 1], range(3))
    assert offsets == [0, 8, 3] and peak == 11


@pytest.mark.parametrize("seed", range(6))
def test_best_of_orders_is_valid_and_between_the_lowest_peak_and_twice_that(seed):
    generator = random.Random(seed)
    buffers = [
        Buffer(str(i), lower, lower + generator.randint(1, 5), generator.randint(1, 20))
        for i, lower in enumerate(generator.choices(range(8), k=7))
    ]
    offsets, peak = best_of_orders(buffers, [4] * 7)
    named = {b.id: offset for b, offset in zip(buffers, offsets, strict=True)}
    check_plan(Problem(buffers), named, capacity=peak, alignment=4)
    assert lowest_peak(buffers, 4) <= peak <= 2 * lowest_peak(buffers, 4)


def test_nothing():
    assert best_of_orders([], []) == ([], 0)
