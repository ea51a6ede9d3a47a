"""How often a kernel runs to be timed, by a clock that only kernels advance."""

import pytest

from hetero_tvm.search.measure import timing


class Clock:
    def __init__(self):
        self.now = 0.0

    def kernel(self, *seconds):
        """A kernel whose runs take ``seconds`` in turn (the last value again and again)."""
        runs = []

        def call():
            self.now += seconds[min(len(runs), len(seconds) - 1)]
            runs.append(self.now)

        return call, runs


def seconds(found):
    return [one.seconds for one in found]


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing, "perf_counter", lambda: clock.now)
    return clock


def test_the_least_of_the_repeats(clock):
    call, runs = clock.kernel(0.0025, 0.004, 0.002, 0.003)
    assert seconds(timing.measure([call], budget=0.014)) == [pytest.approx(0.002)]
    assert len(runs) == 5  # until the budget is spent


def test_short_kernels_run_several_times_in_a_repeat(clock):
    call, runs = clock.kernel(0.0001)
    found = timing.measure([call], budget=0.012, repeats=6, warm_up=0.001)
    assert seconds(found) == [pytest.approx(0.0001)]
    assert 110 < len(runs) < 150


def test_a_slow_kernel_that_has_just_run_needs_no_warm_up(clock):
    call, runs = clock.kernel(0.011)
    assert seconds(timing.measure([call], once=[0.013])) == [pytest.approx(0.011)]
    assert len(runs) == 2
    call, runs = clock.kernel(0.011)
    timing.measure([call])
    assert len(runs) == 2  # the run that warms spends most of the budget


def test_a_kernel_beyond_the_limit_runs_twice(clock):
    call, runs = clock.kernel(0.003)
    timing.measure([call], once=[0.0031], limit=0.002)
    assert len(runs) == 1  # and once for its check
    call, runs = clock.kernel(0.003)
    timing.measure([call], limit=0.002)
    assert len(runs) == 3
    call, runs = clock.kernel(0.0019)
    timing.measure([call], once=[0.0031], limit=0.002)
    assert len(runs) > 3


def test_kernels_alternate(clock):
    order = []

    def kernel(name, seconds):
        def call():
            order.append(name)
            clock.now += seconds

        return call

    a, b = seconds(timing.measure([kernel("a", 0.003), kernel("b", 0.004)], limit=0.001))
    assert (a, b) == (pytest.approx(0.003), pytest.approx(0.004))
    assert "".join(order).startswith("abab")


def test_settling_waits_for_rising_clocks():
    taken = iter([5.0, 4.0, 3.0, 2.0, 1.0, *[1.0] * 50])
    seen = []
    timing.settle(lambda: seen.append(next(taken)) or seen[-1], 0.0, 60.0)
    assert seen == [5.0, 4.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0]
    seen.clear()
    timing.settle(lambda: seen.append(1.0) or 1 / len(seen), 0.0, 0.01)  # for ever faster: time ends it
    assert len(seen) > 3


class Neighbour:
    """Another process: while it runs, a kernel takes three times as long, two thirds of it waiting."""

    def __init__(self, clock, busy):
        self.clock, self.busy, self.taken = clock, busy, 0.0

    def kernel(self, seconds):
        def call():
            if self.busy(self.clock.now):
                self.taken += 2 * seconds
                self.clock.now += 3 * seconds
            else:
                self.clock.now += seconds

        return call


def test_repeats_beside_another_process_do_not_count(clock):
    other = Neighbour(clock, lambda now: now < 0.05)
    (found,) = timing.measure([other.kernel(0.002)], lost=lambda: other.taken)
    assert found.seconds == pytest.approx(0.002) and found.disturbed == 0
    assert found.spread == pytest.approx(0, abs=1e-9)  # of those that count
    assert clock.now > 0.05  # it went on until there were some


def test_what_others_never_leave_alone_says_so(clock):
    other = Neighbour(clock, lambda now: True)
    (found,) = timing.measure([other.kernel(0.002)], lost=lambda: other.taken, patience=10)
    assert found.disturbed == pytest.approx(2 / 3) and found.seconds == pytest.approx(0.006)
    assert 0.13 < clock.now < 0.16  # ten budgets


def test_a_fast_kernel_is_not_given_up_for_what_others_took(clock):
    other = Neighbour(clock, lambda now: now < 0.03)
    (found,) = timing.measure([other.kernel(0.002)], limit=0.003, lost=lambda: other.taken)
    assert found.seconds == pytest.approx(0.002)
    (found,) = timing.measure([other.kernel(0.004)], limit=0.003, lost=lambda: other.taken)
    assert found.seconds == pytest.approx(0.004)


def test_short_kernels_fill_a_repeat_though_they_waited_when_they_were_warmed(clock):
    """The first call behind each look at what was lost is cold; a repeat of one call times only that."""
    cold = []

    def call():
        clock.now += 2e-6 if cold else 1e-7
        cold.clear()

    def lost():
        cold.append(True)
        return 0.0

    (found,) = timing.measure([call], once=[0.02], lost=lost)
    assert found.seconds == pytest.approx(1e-7, rel=0.01) and found.disturbed == 0


def test_one_repeat_of_a_short_kernel_is_not_enough(clock):
    """Its warm-up waited for longer than the budget, and what the first repeat lost is not told."""
    call, _ = clock.kernel(0.0001, 0.02, *[0.0005] * 4, 0.0001)
    (found,) = timing.measure([call])
    assert found.seconds == pytest.approx(0.0001)


def test_the_spread_of_repeats(clock):
    call, _ = clock.kernel(*[0.012, 0.018] * 20)
    (found,) = timing.measure([call], budget=0.07)
    assert found.seconds == pytest.approx(0.012) and found.spread == pytest.approx(0.25)
