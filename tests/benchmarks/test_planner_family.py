"""Tight problems made up for the planner: their own plan is right, they are as full as asked, and solved."""

import random

import pytest

from benchmarks import planner_family
from benchmarks.planner_problems import greedy_by_size
from hetero_tvm.memory import Buffer, Problem, check_plan, plan
from tests.selection import thorough


@pytest.mark.parametrize("kind", planner_family.KINDS)
@pytest.mark.parametrize("full", [1.0, 0.98])
def test_each_kind_has_a_plan_and_is_full(kind, full):
    problem, offsets = planner_family.make(kind, 120, full, 0)
    check_plan(problem, offsets, capacity=planner_family.CAPACITY)
    assert 108 <= len(problem) <= 124
    taken = sum(b.size * (b.upper - b.lower) for b in problem.buffers) / planner_family.CAPACITY**2
    wanted = full if kind != "bricks" else 0.2  # as many bricks as asked for fill less
    most = full + 0.01 if kind in planner_family.DROPPED else full  # pieces are left out whole
    assert wanted - 0.15 <= taken <= most
    again, _ = planner_family.make(kind, 120, full, 0)
    assert again == problem and planner_family.make(kind, 120, full, 1)[0] != problem


@pytest.mark.parametrize(
    "kind, count, full",
    [
        ("mixed", 150, 0.98),
        ("by area", 150, 0.98),
        ("pinwheels", 150, 0.98),
        ("long lives", 300, 0.9),
        *thorough([("slender", 250, 0.9), ("slender, long", 200, 0.95)]),
    ],
)
def test_tight_problems_are_solved_at_the_capacity(kind, count, full):
    problem, _ = planner_family.make(kind, count, full, 0)
    capacity = planner_family.CAPACITY
    found = plan(problem, capacity=capacity, seconds=600)
    check_plan(problem, found.offsets, capacity=capacity)
    assert found.method == "exact search" and 0 < found.decisions < 100_000
    assert greedy_by_size(problem) > capacity  # else the test shows nothing


def test_sizes_that_the_alignment_rounds_up_are_solved_at_the_capacity():
    full, _ = planner_family.make("slender, short", 250, 0.9, 0)
    rng, grid, capacity = random.Random(0), planner_family.GRID, planner_family.CAPACITY
    problem = Problem(Buffer(b.id, b.lower, b.upper, b.size - rng.randrange(grid)) for b in full.buffers)
    found = plan(problem, capacity=capacity, seconds=600, alignment=grid)
    check_plan(problem, found.offsets, capacity=capacity, alignment=grid)
    assert any(b.size % grid for b in problem.buffers) and found.decisions < 100_000


def test_without_a_capacity_the_bound_gets_as_many_decisions_as_all_peaks_above_it():
    problem, _ = planner_family.make("mixed", 120, 1.0, 0)
    found = plan(problem, seconds=600)
    check_plan(problem, found.offsets, capacity=found.peak)
    assert found.optimal and found.peak == planner_family.CAPACITY
