"""Which of two models is kept, by a clock that only their calls advance."""

import pytest

from hetero_tvm.compile import truth


class Clock:
    def __init__(self):
        self.now, self.taken, self.busy = 0.0, 0.0, lambda now: False

    def model(self, seconds):
        def call():
            factor = 3 if self.busy(self.now) else 1
            self.taken += (factor - 1) * seconds
            self.now += factor * seconds

        return call

    def race(self, default, tuned, **options):
        return truth.race(
            self.model(default), self.model(tuned), lost=lambda: self.taken, clock=lambda: self.now, **options
        )


def test_the_faster_one_is_kept():
    found = Clock().race(0.010, 0.008)
    assert found.kept == "tuned" and found.ratio == pytest.approx(0.8)
    assert "10.000 ms by default, 8.000 ms tuned (1.250 x" in str(found)


@pytest.mark.parametrize("tuned", [0.012, 0.010, 0.00996])
def test_the_default_is_kept_when_the_tuned_one_is_not_faster(tuned):
    found = Clock().race(0.010, tuned)
    assert found.kept == "default" and "the default is kept" in str(found)


def test_a_spell_does_not_decide():
    clock = Clock()
    clock.busy = lambda now: 0.4 < now < 0.9
    found = clock.race(0.010, 0.0101)
    assert found.default_seconds == pytest.approx(0.010) and found.tuned_seconds == pytest.approx(0.0101)
    assert found.kept == "default"


def test_a_machine_that_is_never_free_decides_nothing():
    clock = Clock()
    clock.busy = lambda now: True
    assert clock.race(0.010, 0.005) is None
    assert clock.now < 10


def test_slow_models_run_a_few_times_all_the_same():
    found = Clock().race(0.5, 0.4)
    assert found.pairs >= 5 and found.kept == "tuned"
