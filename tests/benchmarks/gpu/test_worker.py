"""The process on the GPU is replaced when a kernel breaks it, and every request is answered."""

import pytest

from benchmarks.gpu.worker import Worker

MODULE = "tests.benchmarks.gpu.bad_worker"
WAIT = 1800  # seconds: no machine is so busy


@pytest.fixture
def worker():
    worker = Worker("sm_90a", module=MODULE)
    yield worker
    worker.close()


@pytest.mark.parametrize(
    ("do", "status", "why"),
    [
        ("die", "crash", "illegal memory access"),
        ("hang", "timeout", "no answer within 0.5 s"),
        ("raise", "failed", "no such row"),
    ],
)
def test_a_bad_request_costs_only_itself(worker, do, status, why):
    assert worker.ask({"do": "fine"}, WAIT)["requests"] == 1
    answer = worker.ask({"do": do}, 0.5 if do == "hang" else WAIT)
    assert answer["status"] == status and why in answer["why"] and "broken" not in answer
    assert worker.ask({"do": "fine"}, WAIT) == {"status": "ok", "requests": 1}  # a new process


def test_a_broken_context_is_replaced(worker):
    assert [worker.ask({"do": do}, WAIT)["requests"] for do in ("fine", "break", "fine")] == [1, 2, 1]


def test_a_process_that_does_not_start(worker):
    answer = Worker("none", module=MODULE).ask({"do": "fine"}, WAIT)
    assert answer["status"] == "failed" and "does not start: no GPU" in answer["why"]
