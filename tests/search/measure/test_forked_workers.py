import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetero_tvm.search.measure.forked_workers import start_early, started_workers
from hetero_tvm.search.measure.service import Job, Limits, contract_spec, generic_spec
from hetero_tvm.targets.cpu.tuner import GENERIC
from tests.search.spaces import MACHINE, BadSpace, RightEveryOther, RightOnce, Scale, ScaleSpace, generic_task


def measured(result):
    """Whether a candidate was timed; another test may have taken the cores meanwhile."""
    return result.status in ("ok", "disturbed")


ROOT = Path(__file__).resolve().parents[3]
GOOD = {"mode": "good", "repeat": 1, "pieces": 2}


def measure(workers, jobs):
    results = dict(workers.measure(jobs))
    assert sorted(results) == list(range(len(jobs)))
    return [results[index] for index in range(len(jobs))]


@pytest.fixture(scope="module")
def bad(workers):
    workers.add_task("bad", contract_spec(Scale(8, 64), BadSpace()))
    return workers


def job(mode, **fields):
    if mode == "hang_run":
        fields.setdefault("run_seconds", 1.0)
    return Job("bad", ({"point": {**GOOD, "mode": mode}},), **fields)


@pytest.mark.thorough
def test_a_good_candidate(bad):
    ((result,),) = measure(bad, [job("good")])
    assert measured(result) and result.seconds > 0
    assert {"build", "check", "time"} <= set(bad.spent)


@pytest.mark.parametrize("space", [RightOnce(), RightEveryOther()], ids=lambda space: space.name)
def test_a_candidate_that_is_wrong_in_later_calls_is_wrong(bad, space):
    bad.add_task("later", contract_spec(Scale(8, 64), space))
    jobs = [Job("later", ({"point": {"repeat": 1, "pieces": pieces}},)) for pieces in (1, 2, 4)]
    for (result,) in measure(bad, jobs):
        assert result.status == "wrong_result" and "after the first call: largest error" in result.text


FAILURES = {
    "crash": ("crash", "SIGSEGV"),
    "crash_run": ("crash", "SIGABRT in the run phase"),
    "hang": ("timeout", "10 s into the build"),
    "hang_run": ("timeout", " s into the run"),
    "wrong": ("wrong_result", "largest error"),
    "unwritten": ("wrong_result", "nan"),
    "memory": ("build_error", "out of memory"),
    "raise": ("build_error", "cannot emit this"),
    "exit": ("crash", "exit status 7"),
}


@pytest.mark.thorough
def test_a_failing_candidate_costs_only_itself(bad):
    modes = list(FAILURES)
    jobs = [job(mode) for pair in zip(modes, ["good"] * len(modes), strict=True) for mode in pair]
    results = measure(bad, jobs)
    for mode, (result,) in zip(modes, results[::2], strict=True):
        status, text = FAILURES[mode]
        assert (result.status, result.seconds) == (status, None), mode
        assert text in result.text, mode
    assert all(measured(result) for (result,) in results[1::2])


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["crash", "crash_run", "hang_run", "wrong", "raise"])
def test_a_failing_candidate_in_a_group_costs_only_itself(bad, mode):
    modes = ("good", mode, "good", "good", "good", "good", mode, "good")
    jobs = [job(m, group_size=4, run_seconds=5.0) for m in modes]  # only jobs that are alike share a process
    results = [result for (result,) in measure(bad, jobs)]
    status, text = FAILURES[mode]
    for index, result in enumerate(results):
        if index in (1, 6):
            assert (result.status, result.seconds) == (status, None) and text in result.text
        else:
            assert measured(result)


def test_members_of_a_group_are_reported_one_by_one(bad):
    modes = ["good"] * 7 + ["hang_run"]
    jobs = [job(mode, group_size=4, run_seconds=600.0) for mode in modes]
    known = []
    for index, (result,) in bad.measure(jobs, lambda: len(known) == 7):
        assert measured(result)
        known.append(index)
    assert sorted(known) == list(range(7))


def test_output_of_a_crashed_candidate_is_its_last_words(bad):
    ((result,),) = measure(bad, [job("crash")])
    assert "last words" in result.text


def test_a_foreign_point_is_refused(bad):
    ((result,),) = measure(bad, [Job("bad", ({"point": {"mode": "nonsense"}},))])
    assert result.status == "build_error" and "nonsense" in result.text


def test_side_by_side_one_failure_does_not_hide_the_others(bad):
    points = [{**GOOD, "mode": mode} for mode in ("good", "wrong", "raise", "good")]
    (results,) = measure(bad, [Job("bad", tuple({"point": point} for point in points))])
    first, *failed, last = results
    assert [result.status for result in failed] == ["wrong_result", "build_error"]
    assert measured(first) and measured(last)


def test_a_task_that_cannot_be_prepared_fails_its_candidates(bad):
    bad.add_task("missing", {**contract_spec(Scale(8, 64), ScaleSpace()), "space": "tests.nowhere:Space"})
    (broken,), (good,) = measure(bad, [Job("missing", ({"point": {}},)), job("good")])
    assert broken.status == "build_error" and "tests.nowhere" in broken.text
    assert measured(good)


def test_generic_kernels_are_compared_with_the_unscheduled_workload(workers):
    workers.add_task("generic", generic_spec(generic_task(16, 64).workload, GENERIC))
    pair = ({"plain": True}, {"generic": True})
    (plain, generic), (again,) = measure(
        workers, [Job("generic", pair, store_reference=True), Job("generic", ({"generic": True},))]
    )
    assert measured(plain) and measured(generic) and measured(again)


@pytest.mark.exhaustive
def test_the_server_is_restarted_when_it_dies(bad):
    workers = bad
    workers.add_task("generic2", generic_spec(generic_task(16, 32).workload, GENERIC))
    measure(workers, [Job("generic2", ({"plain": True},), store_reference=True)])
    workers.wait_ready()
    server = workers._server.process.pid
    jobs = [job("hang_run")] + [job("good") for _ in range(3)]
    jobs += [Job("generic2", ({"generic": True},))]
    killed, seen = False, {}
    for index, (result,) in workers.measure(jobs, lambda: False):
        seen[index] = result
        if not killed:
            killed = True
            os.kill(server, signal.SIGKILL)
    assert sorted(seen) == list(range(len(jobs)))
    assert {result.status for result in seen.values()} <= {"ok", "crash", "timeout"}
    # The reference of a generic kernel was in the dead process: it is computed again.
    ((result,),) = measure(workers, [Job("generic2", ({"generic": True},))])
    assert measured(result)
    assert workers._server.process.pid != server


@pytest.mark.exhaustive
def test_one_death_of_the_server_costs_no_candidate_and_two_cost_those_in_flight(bad):
    jobs = [job("good", run_seconds=600.0) for _ in range(2 * bad._slots + 2)]

    def measured(deaths):
        killed = []

        def kill():  # asked a few times per second, while candidates are built and run
            if len(killed) < deaths and bad._ready and bad._server.process.pid not in killed:
                killed.append(bad._server.process.pid)
                os.kill(killed[-1], signal.SIGKILL)
            return False

        return [result.status for _, (result,) in sorted(bad.measure(jobs, kill))]

    assert set(measured(1)) == {"ok"}
    twice = measured(2)
    assert set(twice) == {"ok", "crash"} and 1 <= twice.count("crash") <= bad._slots


def test_stopping_leaves_the_server_usable(bad):
    asked = itertools.count()  # a few times per second
    jobs = [job("hang_run", run_seconds=600.0), job("good")]
    assert list(bad.measure(jobs, lambda: next(asked) > 3)) == []
    ((result,),) = measure(bad, [job("good")])
    assert measured(result)


@pytest.mark.thorough
def test_a_server_that_was_started_early_is_used_once():
    start_early(MACHINE)
    start_early(MACHINE)
    first = started_workers(MACHINE, MACHINE.codegen_target(), Limits(), seed=1)
    second = started_workers(MACHINE, MACHINE.codegen_target(), Limits(), seed=1)
    assert first is not second and first.seed == 1
    first.close()
    second.close()


def processes_with(text):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                environment = Path("/proc", entry, "environ").read_bytes()
                state = Path("/proc", entry, "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if text.encode() in environment and state != "Z":
                found.append(int(entry))
    return found


def wait_until(condition, seconds=1800):
    """Poll until it holds; not for ever, so that orphans are a failure."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


HANGING = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
from hetero_tvm.search.measure.forked_workers import ForkedWorkers
from hetero_tvm.search.measure.service import *
from tests.search.spaces import *
workers = ForkedWorkers(MACHINE, limits=Limits(build_seconds=1000, run_seconds=1000))
workers.add_task("bad", contract_spec(Scale(8, 64), BadSpace()))
point = {"mode": "hang_run", "repeat": 1, "pieces": 2}
workers.wait_ready()
print("ready", flush=True)
list(workers.measure([Job("bad", ({"point": point},))] * 3))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_orphans_whatever_ends_the_tuner(number):
    mark = f"HETERO_TVM_TEST_MARK={os.getpid()}-{number.value}"
    name, value = mark.split("=")
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING],
        cwd=ROOT,
        env={**os.environ, name: value, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout.readline() == b"ready\n"
    assert wait_until(lambda: len(processes_with(mark)) >= 3)  # tuner, server, candidates
    process.send_signal(number)
    process.wait()
    process.stdout.close()
    assert wait_until(lambda: not processes_with(mark)), "orphans"
