"""Which candidates meet the default side by side, and what it takes to beat it."""

from types import SimpleNamespace

from hetero_tvm.search import comparison
from hetero_tvm.search.measure.service import OK, Result
from hetero_tvm.search.task_state import key_of

POINTS = [{"point": {"tile": n}} for n in range(4)]
NO_RECORDS = SimpleNamespace(best=lambda task: None)


def state(*seconds):
    return SimpleNamespace(
        task=None, times={key_of(p): (s, p) for p, s in zip(POINTS, seconds, strict=False)}
    )


def test_a_default_that_is_the_fastest_meets_nobody():
    assert comparison.contenders(state(1.0, 1.001, 3.0), POINTS[0], NO_RECORDS) == [POINTS[0]]


def test_the_two_fastest_when_they_are_close():
    assert comparison.contenders(state(3.0, 1.0, 1.01, 1.012), POINTS[0], NO_RECORDS) == POINTS[:3]
    assert comparison.contenders(state(3.0, 1.0, 1.02), POINTS[0], NO_RECORDS) == POINTS[:2]


def test_a_challenger_must_win_clearly():
    def results(*seconds):
        return [Result(OK, s) if s else Result("crash", None) for s in seconds]

    assert comparison.winner(results(1.0, 0.99)) == 0
    assert comparison.winner(results(1.0, 0.97, 0.96)) == 2
    assert comparison.winner(results(None, 0.97, 0.96)) == 2
    assert comparison.winner(results(1.0, None)) == 0
    assert comparison.winner(results(None, None)) is None
