import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hetero_tvm.machines import roofs
from hetero_tvm.ops.add_norm import AddNorm
from hetero_tvm.records.appending import append_line
from hetero_tvm.records.choose import choose_one
from hetero_tvm.records.record import VERIFIED, Site, new_record
from hetero_tvm.records.store import RecordStore
from hetero_tvm.schedules.cpu.rows.add_norm import AddNormSpace
from hetero_tvm.schedules.task import Task
from hetero_tvm.search import comparison
from hetero_tvm.search.loop import TuneOptions, tune
from hetero_tvm.search.measure.service import Limits
from hetero_tvm.targets.cpu.tuner import GENERIC
from tests.search.spaces import (
    MACHINE,
    FailingSpace,
    ForgetsTheSum,
    IdleKnob,
    NeverWorks,
    ScaleSpace,
    SinglePoint,
    TinySpace,
    TupleSpace,
    generic_matmul,
    generic_task,
    task,
)

ROOT = Path(__file__).resolve().parents[2]
SITE = Site.of(MACHINE)


@pytest.fixture(autouse=True)
def quick_roofs(monkeypatch):
    monkeypatch.setattr(roofs, "measure", lambda threads: roofs.Roofs(100.0, 10.0))


def run(tasks, folder, workers, trials=None, on_event=None, **options):
    store = RecordStore(SITE, folder)
    options = TuneOptions(trials=trials, generic=GENERIC, **options)
    return tune(tasks, MACHINE, options, store, on_event, workers), store


def lines(store):
    return [json.loads(line) for line in store.path.read_text().splitlines()]


@pytest.mark.thorough
def test_default_first_then_search_then_comparison(tmp_path, workers):
    events = []
    tuned = task(ScaleSpace(), rows=64, n=512, calls=3)
    report, store = run([tuned], tmp_path, workers, 9, events.append)
    trials = [line for line in lines(store) if line["role"] == "trial"]
    assert len(trials) == report.trials == 9
    assert trials[0]["point"] == {"repeat": 8, "pieces": 1}
    points = [json.dumps(line["point"], sort_keys=True) for line in trials]
    assert len(set(points)) == 9
    (verified,) = [line for line in lines(store) if line["role"] == VERIFIED]
    assert verified["seconds"] <= verified["default_seconds"]
    choice = choose_one(tuned, MACHINE, store)
    assert json.dumps(choice.point, sort_keys=True) in points and choice.seconds == verified["seconds"]
    (row,) = report.tasks
    assert row.calls == 3 and row.tuned_seconds <= row.default_seconds and "verified" in row.origin
    assert [event["event"] for event in events][0] == "start"
    assert sum(event["event"] == "trial" for event in events) == 9
    assert [trial for _, trial, _ in report.curve] == list(range(1, 10))
    totals = [total for *_, total in report.curve]
    assert totals == sorted(totals, reverse=True)
    json.dumps(report.to_dict())


@pytest.mark.thorough
def test_a_finished_run_repeated_adds_nothing(tmp_path, workers):
    run([task(ScaleSpace())], tmp_path, workers, 5)
    before = (tmp_path / RecordStore(SITE, tmp_path).path.name).read_text()
    report, store = run([task(ScaleSpace())], tmp_path, None, 5)
    assert (report.trials, report.reused, report.stopped) == (0, 5, "nothing to do")
    assert store.path.read_text() == before
    report, store = run([task(ScaleSpace())], tmp_path, workers, 7)
    assert (report.trials, report.reused) == (2, 5)


@pytest.mark.exhaustive
def test_tiny_spaces_are_exhausted_and_their_budget_goes_on(tmp_path, workers):
    tasks = [task(TinySpace(), rows=64, n=512, calls=50), task(SinglePoint()), task(IdleKnob(), 8, 64)]
    report, store = run(tasks, tmp_path, workers, 12)
    assert [row.trials for row in report.tasks] == [3, 1, 8]
    assert report.trials == 12
    everything = 3 + 1 + 10
    report, store = run(tasks, tmp_path, workers, 100)
    assert report.stopped == "exhausted"
    assert report.trials == everything - 12
    measured = [(line["key"], json.dumps(line["point"])) for line in lines(store) if line["role"] == "trial"]
    assert len(measured) == len(set(measured)) == everything
    report, _ = run(tasks, tmp_path, None, 100)
    assert report.stopped == "nothing to do"


@pytest.mark.thorough
def test_failures_are_counted_recorded_and_not_repeated(tmp_path, workers):
    bad = task(FailingSpace(), 8, 64)
    report, store = run([bad], tmp_path, workers, 14)
    assert report.trials == 14
    (row,) = report.tasks
    assert row.failures and sum(row.failures.values()) == sum(line["status"] != "ok" for line in lines(store))
    failed = [line for line in lines(store) if line["status"] != "ok"]
    assert all(line["error"] and "seconds" not in line for line in failed)
    assert choose_one(bad, MACHINE, store).point["mode"] == "good"


def test_a_task_whose_every_candidate_fails_is_given_up(tmp_path, workers):
    report, _ = run([task(NeverWorks(), 8, 64)], tmp_path, workers, 100)
    assert report.trials < 40 and "given up" in report.tasks[0].note
    assert report.tasks[0].tuned_seconds is None


@pytest.mark.thorough
def test_kernels_with_two_results(tmp_path, workers):
    """Both results of every candidate are compared with the reference."""
    op, space = AddNorm((64,), 256, (64, 256), 1e-5), AddNormSpace()
    tuned = Task("add_norm", "add_norm", op, op.workload(), space, (("node",),), op.flops, op.nbytes)
    report, store = run([tuned], tmp_path, workers, 3)
    trials = [line for line in lines(store) if line["role"] == "trial"]
    assert len(trials) == report.trials > 1 and {line["status"] for line in trials} == {"ok"}


def test_a_wrong_first_result_is_seen(tmp_path, workers):
    op, space = AddNorm((8,), 16, (8, 16), 1e-5), ForgetsTheSum()
    tuned = Task("add_norm", "add_norm", op, op.workload(), space, (("node",),), op.flops, op.nbytes)
    _, store = run([tuned], tmp_path, workers, 1)
    assert [line["status"] for line in lines(store) if line["role"] == "trial"] == ["wrong_result"]


@pytest.mark.thorough
def test_a_resumed_search_knows_what_it_measured(tmp_path, workers):
    """Records come back from JSON with lists for tuples; they teach all the same, and none is timed again."""
    tuned = task(TupleSpace(), rows=64, n=512)
    run([tuned], tmp_path, workers, 5)
    report, store = run([tuned], tmp_path, workers, 11)
    points = [json.dumps(line["point"]) for line in lines(store) if line["role"] == "trial"]
    assert len(points) == len(set(points)) == 11 and report.reused >= 5
    assert not [text for text in report.warnings if "of no use" in text]
    again, _ = run([tuned], tmp_path, workers, 30)
    assert again.trials == 1  # the twelfth and last point


@pytest.mark.thorough
def test_records_of_another_space_are_told(tmp_path, workers):
    tuned = task(TupleSpace(), rows=64, n=512)
    _, store = run([tuned], tmp_path, workers, 2)
    foreign = [{**line, "point": {"tile": [7, 7]}} for line in lines(store)[:1]]
    with store.path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in foreign)
    report, _ = run([tuned], tmp_path, workers, 5)
    assert [text for text in report.warnings if "1 of 3 records are of no use" in text]


@pytest.mark.thorough
def test_generic_kernels(tmp_path, workers):
    heavy = [task(ScaleSpace(), 64, 512), generic_task(64, 512, calls=3)]
    report, store = run(heavy, tmp_path, workers, 8)
    generic = report.tasks[1]
    assert generic.default_seconds and report.trials == 8
    light = [task(ScaleSpace(), 256, 1024, calls=100), generic_task(4, 16)]
    report, store = run(light, tmp_path, workers, 4)
    assert "not tuned" in report.tasks[1].note and report.tasks[1].trials == 0


@pytest.mark.exhaustive
def test_stock_records_are_used_again(tmp_path, workers):
    heavy = generic_matmul()
    report, store = run([heavy], tmp_path, workers, 6)
    assert report.trials == 6
    report, store = run([heavy], tmp_path, workers, 8)
    assert (report.trials, report.reused) == (2, 6)
    choice = choose_one(heavy, MACHINE, store)
    assert choice.point is None and choice.origin != "default"


@pytest.mark.exhaustive
def test_records_of_foreign_machines_are_not_used(tmp_path, workers):
    tuned = task(ScaleSpace())
    store = RecordStore(SITE, tmp_path)
    elsewhere = Site("cpu", MACHINE.mcpu, "other", 2)
    foreign = new_record(tuned, elsewhere, {"point": {"repeat": 1, "pieces": 4}}, seconds=1e-12)
    append_line(store.path, foreign.to_json())
    report, store = run([tuned], tmp_path, workers, 2)
    assert (report.trials, report.reused) == (2, 0)
    assert choose_one(tuned, MACHINE, store).seconds > 1e-12


def test_time_budget(tmp_path, workers):
    report, _ = run([task(ScaleSpace())], tmp_path, workers, None, minutes=1e-4)
    assert report.stopped == "time"


@pytest.mark.exhaustive
def test_events_may_interrupt(tmp_path, workers):
    def interrupt(event):
        if event["event"] == "trial" and event["trials"] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    report, store = run([task(ScaleSpace())], tmp_path, workers, 10, interrupt)
    assert report.interrupted and 3 <= report.trials < 10
    assert len([line for line in lines(store) if line["role"] == "trial"]) == report.trials
    assert any("interrupted" in text for text in report.warnings)
    assert signal.getsignal(signal.SIGINT) is handler
    report, _ = run([task(ScaleSpace())], tmp_path, workers, 10)
    assert not report.interrupted and report.trials + report.reused == 10


@pytest.mark.thorough
def test_the_winner_must_win_side_by_side(tmp_path, workers, monkeypatch):
    """A trial that was only fast by noise does not replace the default."""
    tuned = task(ScaleSpace(), 64, 512)
    store = RecordStore(SITE, tmp_path)
    store.append(new_record(tuned, SITE, {"point": {"repeat": 8, "pieces": 2}}, seconds=1e-9))
    store.append(new_record(tuned, SITE, {"point": {"repeat": 8, "pieces": 1}}, seconds=1e-8))
    monkeypatch.setattr(comparison, "_MARGIN", 0.9)  # the machine may be noisy: nothing wins by 90 %
    report = tune([tuned], MACHINE, TuneOptions(trials=2), store, None, workers)
    assert report.trials == 0
    assert choose_one(tuned, MACHINE, store).point == {"repeat": 8, "pieces": 1}


TUNING = """
import sys
from hetero_tvm.machines import roofs
roofs.measure = lambda threads: roofs.Roofs(100.0, 10.0)
from hetero_tvm.search.loop import *
from hetero_tvm.records.store import *
from tests.search.spaces import *
def say(event):
    if event["event"] == "trial":
        print(event["trials"], flush=True)
store = RecordStore(Site.of(MACHINE), sys.argv[1])
tune([task(ScaleSpace(), 64, 512), task(TinySpace(), 64, 256)], MACHINE, TuneOptions(trials=14), store, say)
"""


@pytest.mark.thorough
def test_kill_9_loses_nothing_finished(tmp_path, workers):
    command = [sys.executable, "-c", TUNING, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    while process.stdout.readline().strip() != b"5":
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    store = RecordStore(SITE, tmp_path)
    before = [line for line in lines(store) if line["role"] == "trial"]
    assert len(before) >= 5
    tasks = [task(ScaleSpace(), 64, 512), task(TinySpace(), 64, 256)]
    report, store = run(tasks, tmp_path, workers, 14)
    assert (report.reused, report.trials) == (len(before), 14 - len(before))
    trials = [(line["key"], json.dumps(line["point"])) for line in lines(store) if line["role"] == "trial"]
    assert len(set(trials)) == len(trials) == 14
    assert trials[: len(before)] == [(line["key"], json.dumps(line["point"])) for line in before]


@pytest.mark.exhaustive
def test_own_process_is_closed(tmp_path):
    report, _ = run([task(SinglePoint())], tmp_path, None, 1, limits=Limits(build_seconds=10))
    assert report.trials == 1 and report.start_up >= 0
