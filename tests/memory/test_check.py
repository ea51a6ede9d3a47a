"""The checker finds what is wrong, by name, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import planner_problems
from hetero_tvm.memory import Buffer, PlanError, Problem, check_plan, find_mistakes, plan

PAIR = Problem([Buffer("a", 0, 4, 10), Buffer("b", 2, 6, 10)])


def kinds(problem, offsets, **options):
    return [finding.kind for finding in find_mistakes(problem, offsets, **options)]


def test_right_plans():
    assert kinds(PAIR, {"a": 0, "b": 10}) == []
    assert kinds(Problem([Buffer("a", 0, 2, 9), Buffer("b", 2, 4, 9)]), {"a": 0, "b": 0}) == []
    assert (
        kinds(
            Problem([Buffer("a", 0, 2, 9), Buffer("b", 1, 1, 9), Buffer("c", 0, 2, 0)]),
            dict.fromkeys("abc", 0),
        )
        == []
    )


def test_an_overlap_is_named():
    with pytest.raises(
        PlanError, match=r"'a' \[0, 10\) and 'b' \[9, 19\) overlap while both live, from 2 to 4"
    ):
        check_plan(PAIR, {"a": 0, "b": 9})


def test_one_inside_the_other_and_equal_places():
    nested = Problem([Buffer("big", 0, 9, 100), Buffer("small", 3, 4, 1)])
    assert kinds(nested, {"big": 0, "small": 50}) == ["overlap"]
    assert kinds(PAIR, {"a": 0, "b": 0}) == ["overlap"]


def test_alone_mistakes():
    assert kinds(PAIR, {"a": 0}) == ["missing"]
    assert kinds(PAIR, {"a": -10, "b": 0}) == ["negative"]
    assert kinds(PAIR, {"a": 0, "b": 10}, capacity=19) == ["capacity"]
    assert kinds(PAIR, {"a": 0, "b": 10}, alignment=4) == ["alignment"]
    own = Problem([Buffer("a", 0, 1, 4, 8)])
    assert kinds(own, {"a": 4}) == ["alignment"]


@pytest.mark.thorough
@given(st.data())
def test_agrees_with_all_pairs(data):
    count = data.draw(st.integers(0, 9))
    number = st.integers(0, 6)
    buffers = []
    for i in range(count):
        lower = data.draw(number)
        buffers.append(Buffer(str(i), lower, lower + data.draw(number), data.draw(number)))
    offsets = {b.id: data.draw(number) for b in buffers}

    def overlap(a: Buffer, b: Buffer) -> bool:
        in_time = max(a.lower, b.lower) < min(a.upper, b.upper)
        start, end = max(offsets[a.id], offsets[b.id]), min(offsets[a.id] + a.size, offsets[b.id] + b.size)
        return in_time and start < end

    expected = any(overlap(a, b) for i, a in enumerate(buffers) for b in buffers[:i])
    assert bool(find_mistakes(Problem(buffers), offsets)) == expected


def test_any_buffer_moved_onto_another_is_caught():
    problem = planner_problems.perfect(40, 7, waste=0)
    offsets = dict(plan(problem, capacity=1 << 20, seconds=600).offsets)
    assert find_mistakes(problem, offsets, capacity=1 << 20) == []
    for b in problem.buffers:  # the rectangle is full: every move overlaps or leaves the arena
        moved = {**offsets, b.id: offsets[b.id] + 1}
        assert find_mistakes(problem, moved, capacity=1 << 20), b.id
