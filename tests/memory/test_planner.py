"""The planner: always valid, lowest on small problems, as good as promised on hard ones."""

from __future__ import annotations

import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import planner_problems
from hetero_tvm.errors import NativeBuildError, UsageError
from hetero_tvm.memory import Buffer, Plan, Problem, check_plan, greedy, plan, planner
from tests.memory.brute_force import lowest_peak


@st.composite
def problems(draw, most: int = 7, largest: int = 40, alignments=(None,)):
    buffers = []
    for number in range(draw(st.integers(0, most))):
        lower = draw(st.integers(-3, 8))
        upper = lower + draw(st.integers(0, 6))
        size = draw(st.integers(0, largest))
        buffers.append(Buffer(f"b{number}", lower, upper, size, draw(st.sampled_from(alignments))))
    return Problem(buffers)


@settings(max_examples=150)
@given(problems())
def test_lowest_peak_of_small_problems(problem):
    result = plan(problem, seconds=600)
    check_plan(problem, result.offsets, capacity=result.peak)
    assert result.optimal
    assert result.peak == lowest_peak(list(problem.buffers))


@settings(max_examples=100)
@given(problems(most=6, alignments=(None, 1, 4, 16)))
def test_lowest_peak_with_alignments(problem):
    result = plan(problem, seconds=600, alignment=8)
    check_plan(problem, result.offsets, capacity=result.peak, alignment=8)
    assert result.optimal
    assert result.peak == lowest_peak(list(problem.buffers), 8)


@settings(max_examples=60)
@given(problems(most=6), st.integers(-3, 3))
def test_capacity_decides(problem, delta):
    lowest = lowest_peak(list(problem.buffers))
    capacity = max(0, lowest + delta)
    result = plan(problem, capacity=capacity, seconds=600)
    check_plan(problem, result.offsets, capacity=result.peak)
    assert result.fits == (capacity >= lowest)
    assert result.impossible == (capacity < lowest)


@pytest.mark.parametrize("seed", range(12))
def test_never_worse_than_greedy_by_size(seed):
    rng = random.Random(seed)
    problem = planner_problems.scattered(rng.randint(2, 300), seed, span=rng.choice((10, 100, 1000)))
    result = plan(problem, seconds=0.3)
    check_plan(problem, result.offsets, capacity=result.peak)
    assert result.lower_bound <= result.peak <= planner_problems.greedy_by_size(problem)
    assert result.lower_bound >= problem.max_live()


def test_a_search_that_found_little_gives_way_to_greedy_in_any_order_of_equals():
    ties = (lambda b: 0, lambda b: b.lower, lambda b: -b.upper, lambda b: b.lower - b.upper)
    differ = 0
    for seed in range(8):
        rng = random.Random(seed)
        buffers = [
            Buffer(str(i), lower, lower + rng.randint(1, 10), rng.choice((16, 24, 40)))
            for i, lower in enumerate(rng.choices(range(30), k=60))
        ]
        result = plan(Problem(buffers), seconds=1e-9)  # over before the search begins
        check_plan(Problem(buffers), result.offsets, capacity=result.peak)
        peaks = []
        for tie in ties:
            order = sorted(range(60), key=lambda i, tie=tie, bs=buffers: (-bs[i].size, tie(bs[i])))
            peaks.append(greedy.first_fit(buffers, [1] * 60, order)[1])
        assert result.peak <= min(peaks)
        differ += min(peaks) < max(peaks)
    assert differ >= 4  # else the test shows nothing


@pytest.mark.parametrize("count, seed", [(60, 0), (100, 1), (140, 2)])
def test_perfect_plan_of_a_cut_rectangle(count, seed):
    problem = planner_problems.perfect(count, seed)
    result = plan(problem, capacity=1 << 20, seconds=600)
    check_plan(problem, result.offsets, capacity=1 << 20)
    assert planner_problems.greedy_by_size(problem) > 1 << 20  # else the test shows nothing


def test_training_of_thousands_of_buffers_meets_the_bound():
    problem = planner_problems.training(5000)
    result = plan(problem, seconds=600, alignment=64)
    check_plan(problem, result.offsets, capacity=result.peak, alignment=64)
    assert result.gap < 0.02


@pytest.mark.exhaustive
def test_thousands_of_random_lives_near_the_bound():
    problem = planner_problems.scattered(18_692, 1)
    capacity = int(1.02 * problem.max_live())
    result = plan(problem, capacity=capacity, seconds=600)
    check_plan(problem, result.offsets, capacity=capacity)


def test_same_seed_same_plan():
    problem = planner_problems.perfect(50, 3)
    first, second = (plan(problem, capacity=1 << 20, seconds=600, seed=5) for _ in range(2))
    assert first.offsets == second.offsets


@pytest.mark.parametrize("seed", range(3))
def test_plans_do_not_depend_on_the_order_or_the_names_of_buffers(seed):
    problem = planner_problems.perfect(70, seed)
    rows = list(problem.buffers)
    random.Random(seed).shuffle(rows)
    renamed = Problem(Buffer(f"x{i}", b.lower, b.upper, b.size) for i, b in enumerate(rows))
    first, second = (plan(p, capacity=1 << 20, seconds=600) for p in (problem, renamed))

    def placed(p, result):
        return sorted((b.lower, b.upper, b.size, result.offsets[b.id]) for b in p.buffers)

    assert placed(problem, first) == placed(renamed, second) and first.fits


@pytest.mark.parametrize("turn", ["time", "names", "larger", "halves"])
def test_a_changed_problem_is_solved_as_well(turn):
    """Time reversed, other units, buffers cut in two: no harder than before."""
    buffers, capacity = list(planner_problems.perfect(90, 11).buffers), 1 << 20
    if turn == "time":
        buffers = [Buffer(b.id, -b.upper, -b.lower, b.size) for b in buffers]
    elif turn == "names":
        buffers = [Buffer(f"{b.id}?", b.lower, b.upper, b.size) for b in reversed(buffers)]
    elif turn == "larger":
        buffers = [Buffer(b.id, 7 * b.lower, 7 * b.upper, 3 * b.size) for b in buffers]
        capacity *= 3
    else:
        middles = [(b, (b.lower + b.upper) // 2) for b in buffers]
        buffers = [Buffer(f"{b.id}-", b.lower, middle, b.size) for b, middle in middles[:40]]
        buffers += [Buffer(f"{b.id}+", middle, b.upper, b.size) for b, middle in middles[:40]]
        buffers += [b for b, _ in middles[40:]]
    problem = Problem(buffers)
    result = plan(problem, capacity=capacity, seconds=600)
    check_plan(problem, result.offsets, capacity=capacity)


def test_nothing_to_plan():
    for buffers in ([], [Buffer("a", 1, 1, 8), Buffer("b", 0, 5, 0)]):
        result = plan(Problem(buffers), capacity=0)
        assert (result.peak, result.lower_bound, result.optimal, result.fits) == (0, 0, True, True)
        assert result.method == "trivial"
        assert set(result.offsets.values()) <= {0}


def test_sizes_beyond_32_bits():
    size = 3 * 2**40 + 1
    problem = Problem([Buffer("a", 0, 2**50, size), Buffer("b", 5, 9, size), Buffer("c", -(2**60), 1, 7)])
    result = plan(problem, alignment=64)
    check_plan(problem, result.offsets, capacity=result.peak, alignment=64)
    assert result.optimal and result.peak == 3 * 2**40 + 64 + size


def test_topmost_buffer_needs_no_padding():
    problem = Problem([Buffer("a", 0, 2, 65), Buffer("b", 0, 2, 64)])
    assert plan(problem, alignment=64).peak == 64 + 65


def test_identical_buffers_are_proven_quickly_not_to_fit():
    problem = Problem(Buffer(f"b{i}", i % 3, i % 3 + 4, 10) for i in range(30))
    result = plan(problem, capacity=299, seconds=600)
    assert result.impossible and not result.fits


def test_greedy_in_python_when_there_is_no_compiler(monkeypatch):
    def fail():
        raise NativeBuildError("no C++ compiler")

    monkeypatch.setattr(planner, "_library", fail)
    problem = planner_problems.scattered(80, 4)
    result = plan(problem, alignment=64)
    check_plan(problem, result.offsets, capacity=result.peak, alignment=64)
    assert "no C++ compiler" in result.note and "Python" in result.method


def test_several_threads_at_once():
    problem = planner_problems.perfect(40, 1)
    results: list[Plan] = []
    threads = [
        threading.Thread(target=lambda: results.append(plan(problem, capacity=1 << 20, seconds=600)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3 and results[0].offsets == results[1].offsets == results[2].offsets


@pytest.mark.parametrize(
    "options",
    [{"capacity": -1}, {"seconds": 0}, {"seconds": float("inf")}, {"alignment": 3}, {"alignment": 0}],
)
def test_arguments_out_of_range(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        plan(Problem([Buffer("a", 0, 1, 1)]), **options)


def test_sum_with_alignment_out_of_range():
    with pytest.raises(UsageError, match="2\\*\\*62"):
        plan(Problem([Buffer("a", 0, 1, 2**62 - 2)]), alignment=64)
