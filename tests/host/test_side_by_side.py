"""Tasks on all cores."""

import threading

import pytest

from hetero_tvm.host import side_by_side as subject
from hetero_tvm.host.side_by_side import side_by_side


def test_results_have_the_order_of_subjects():
    assert side_by_side(lambda n: n * n, range(20)) == [n * n for n in range(20)]
    assert side_by_side(lambda n: n, []) == []


def test_tasks_go_on_together(monkeypatch):
    monkeypatch.setattr(subject, "available_cores", lambda: (0, 1))
    met = threading.Barrier(2)
    assert sorted(side_by_side(lambda n: met.wait(), range(2))) == [0, 1]


@pytest.mark.parametrize("cores", [(0,), (0, 1)])
def test_what_fails_is_raised_and_the_rest_left(monkeypatch, cores):
    monkeypatch.setattr(subject, "available_cores", lambda: cores)
    begun = []

    def task(n):
        begun.append(n)
        if n == 1:
            raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        side_by_side(task, range(500))
    assert len(begun) < 500


def test_stacks_are_as_before():
    before = threading.stack_size()
    side_by_side(lambda n: n, range(3))
    assert threading.stack_size() == before
