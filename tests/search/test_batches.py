"""Tuning beside a process that takes the cores for a while, by a clock of its own."""

import json
from collections import defaultdict

import pytest

from hetero_tvm.machines import roofs
from hetero_tvm.records.choose import choose_one
from hetero_tvm.records.record import TRIAL, VERIFIED, Site, new_record
from hetero_tvm.records.store import RecordStore
from hetero_tvm.search.loop import TuneOptions, tune
from hetero_tvm.search.measure.service import DISTURBED, OK, Result
from hetero_tvm.search.measure.spells import Spells
from hetero_tvm.targets.cpu.tuner import GENERIC
from tests.search.spaces import MACHINE, ScaleSpace, generic_task, task

SITE = Site.of(MACHINE)


@pytest.fixture(autouse=True)
def quick_roofs(monkeypatch):
    monkeypatch.setattr(roofs, "measure", lambda threads: roofs.Roofs(100.0, 10.0))


def truth(point):
    return 1e-3 * (1 + abs(point["repeat"] - 2) + 0.1 * point["pieces"])


class FakeMachine:
    """Workers whose kernels take :func:`truth`, and more while another process is busy.

    Parameters
    ----------
    busy : moment -> factor on all times (1: nobody is there).
    seen : whether the scheduler's statistics tell of it; else times are simply longer.
    """

    def __init__(self, busy, seen=False):
        self.busy, self.seen, self.now, self.spent = busy, seen, 0.0, {}
        self.runs = defaultdict(int)

    def add_task(self, name, spec):
        pass

    def wait_ready(self):
        pass

    def roofs(self):
        return roofs.Roofs(100.0, 10.0)

    def close(self):
        pass

    def measure(self, jobs, stop=lambda: False):
        for index, job in enumerate(jobs):
            results = []
            for candidate in job.candidates:
                point, factor = candidate["point"], self.busy(self.now)
                self.runs[json.dumps(point, sort_keys=True)] += 1
                self.now += 0.5
                status = DISTURBED if self.seen and factor > 1 else OK
                lost = 1 - 1 / factor if status == DISTURBED else 0.0
                results.append(Result(status, truth(point) * factor, "", 0.01, lost))
            yield index, results

    def spells(self, patience=60.0):
        def others():
            self.now += 0.25
            return 1 - 1 / self.busy(self.now)

        return Spells(patience, others, lambda: self.now)


def run(machine, folder, trials=12, patience=60.0):
    store = RecordStore(SITE, folder)
    options = TuneOptions(trials=trials, spells=machine.spells(patience))
    tuned = task(ScaleSpace())
    return tune([tuned], MACHINE, options, store, None, machine), RecordStore(SITE, folder), tuned


def every_other_ten_seconds(now):
    return 40.0 if now % 20 >= 10 else 1.0


@pytest.mark.parametrize("seen", [True, False], ids=["the scheduler tells", "only times tell"])
@pytest.mark.parametrize("phase", [0, 3, 7, 11, 14, 18])
def test_the_same_winner_beside_a_process_that_comes_and_goes(tmp_path, seen, phase):
    machine = FakeMachine(lambda now: every_other_ten_seconds(now + phase), seen)
    report, store, tuned = run(machine, tmp_path)
    choice = choose_one(tuned, MACHINE, store)
    assert truth(choice.point) <= 1.03 * truth({"repeat": 2, "pieces": 1})
    assert report.disturbed == 0 and report.trials == 12
    assert choice.seconds == pytest.approx(truth(choice.point))
    for candidate, record in store.measured(tuned).items():  # what a later run begins with
        assert record.seconds == pytest.approx(truth(json.loads(candidate)))
    assert report.tasks[0].default_seconds == pytest.approx(truth({"repeat": 8, "pieces": 1}))


@pytest.mark.parametrize("trials", [6, 8, 10])
def test_what_is_taken_back_is_one_trial(tmp_path, trials):
    """The first batch fell into a spell that only the times of the second one tell of."""
    machine = FakeMachine(lambda now: 40.0 if now < 2 else 1.0)
    report, store, tuned = run(machine, tmp_path, trials, patience=0)
    assert report.trials == trials and report.disturbed > 0
    assert len(store.measured(tuned)) + report.disturbed == trials


def test_a_machine_that_never_rests_is_told_and_misleads_no_later_run(tmp_path):
    busy = FakeMachine(lambda now: 40.0, seen=True)
    report, store, tuned = run(busy, tmp_path, patience=5)
    assert report.disturbed == report.trials > 0
    assert any("could not be measured" in text for text in report.warnings)
    assert store.measured(tuned) == {} and store.best(tuned) is None
    assert choose_one(tuned, MACHINE, store).origin == "default"
    assert report.tasks[0].default_seconds is None and 4 < report.waited < 8
    report, store, tuned = run(FakeMachine(lambda now: 1.0), tmp_path)
    assert report.trials == 12 and report.disturbed == 0
    assert choose_one(tuned, MACHINE, store).point == {"repeat": 2, "pieces": 1}


def test_a_default_of_a_spell_in_old_records_is_not_compared_with_a_winner_of_today(tmp_path):
    """A first run under load said 8 times faster, and every later run repeated it."""
    tuned, store = task(ScaleSpace()), RecordStore(SITE, tmp_path)
    default = {"repeat": 8, "pieces": 1}
    store.append(new_record(tuned, SITE, {"point": default}, seconds=1.5, role=TRIAL))
    report, store, tuned = run(FakeMachine(lambda now: 1.0), tmp_path)
    (row,) = report.tasks
    assert row.default_seconds == pytest.approx(truth(default))
    assert row.tuned_seconds == pytest.approx(truth({"repeat": 2, "pieces": 1}))


def test_a_record_far_from_the_model_is_measured_again(tmp_path):
    """Times of a noisy spell, all of them ok, as earlier versions wrote them."""
    tuned, store = task(ScaleSpace()), RecordStore(SITE, tmp_path)
    for repeat in (1, 2, 4, 8):
        for pieces in (1, 2, 4):
            point = {"repeat": repeat, "pieces": pieces}
            noisy = 50.0 if repeat == 2 else 1.0
            store.append(new_record(tuned, SITE, {"point": point}, seconds=noisy * truth(point), role=TRIAL))
    report, store, tuned = run(FakeMachine(lambda now: 1.0), tmp_path, trials=12)
    assert choose_one(tuned, MACHINE, store).point == {"repeat": 2, "pieces": 1}


def test_winners_are_verified_in_the_calm(tmp_path):
    """A comparison in which everything took far longer than alone is no comparison."""
    machine = FakeMachine(lambda now: 1.0)
    calm = machine.measure

    def measure(jobs, stop=lambda: False):
        comparing = [job for job in jobs if len(job.candidates) > 1]
        if comparing and not getattr(machine, "compared", False):
            machine.compared = True
            machine.busy = lambda now: 44.0
            yield from list(calm(jobs, stop))
            machine.busy = lambda now: 1.0
        else:
            yield from calm(jobs, stop)

    machine.measure = measure
    report, store, tuned = run(machine, tmp_path)
    record, _ = store.best(tuned)
    assert record.role == VERIFIED and record.seconds == pytest.approx(truth(record.point))


@pytest.mark.parametrize("until", [3, float("inf")], ids=["at first", "all the time"])
def test_a_disturbed_default_is_not_taken_for_the_plain_loops(tmp_path, until):
    """A resize of 0.02 ms was told of as 1.5 ms: the time of its unscheduled form, 70% of the model's."""
    seconds = {True: 50.0, False: 1.0}
    machine = FakeMachine(lambda now: 3.0 if now < until else 1.0)

    def measure(jobs, stop=lambda: False):
        for index, job in enumerate(jobs):
            machine.now += 1
            factor = machine.busy(machine.now)
            status = DISTURBED if factor > 1 else OK
            yield index, [Result(status, seconds["plain" in one] * factor) for one in job.candidates]

    machine.measure = measure
    options = TuneOptions(trials=1, spells=machine.spells(5.0), generic=GENERIC)
    report = tune([generic_task(4, 16)], MACHINE, options, RecordStore(SITE, tmp_path), None, machine)
    (row,) = report.tasks
    assert row.default_seconds == (1.0 if until == 3 else 3.0)
