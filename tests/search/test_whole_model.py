"""Combinations: what is recorded of whole models, what counts as done, and what is built from it."""

from types import SimpleNamespace

import pytest

from hetero_tvm.records.choose import choose
from hetero_tvm.records.combinations import Found, WholeModel
from hetero_tvm.records.record import TRIAL, VERIFIED, Site, new_record
from hetero_tvm.records.store import RecordStore
from hetero_tvm.search.options import TuneOptions
from hetero_tvm.search.outcome import TaskReport, TuneReport
from hetero_tvm.search.whole_model import tune_whole_model
from tests.search.spaces import ScaleSpace, task

MACHINE = SimpleNamespace(
    mcpu="m", features=("test",), lanes=8, threads=1, variant="", sorted_choices=False, whole_models=True
)
SITE = Site.of(MACHINE)
FAST = {"repeat": 2, "pieces": 1}


class Search:
    """Whole models take 10 seconds by default, and one less with every trial."""

    def __init__(self, tasks):
        self.asked, self.tasks = [], tasks

    def __call__(self, known, seed, more, on_trial):
        self.asked.append(known)
        best = min((seconds for _, seconds in known.past), default=10.0)
        combination = min(known.past, key=lambda entry: entry[1])[0] if known.past else {}
        while more():
            best -= 1.0
            combination = {self.tasks[0].key: {**FAST, "keep": int(best) % 2}}
            on_trial(combination, best, best)
        return Found(combination, 10.0, best, "seconds", 1.0)


@pytest.fixture
def model():
    tasks = [task(ScaleSpace())]
    return SimpleNamespace(find=Search(tasks), module=None, tasks=tasks, machine=MACHINE)


def run(model, folder, trials):
    store = RecordStore(SITE, folder)
    report = TuneReport([TaskReport(model.tasks[0].name, 1, 1, 1)])
    tune_whole_model(model, model.find, TuneOptions(trials=trials), store, report, lambda event: None)
    return store, report


def test_trials_are_recorded_and_count(model, tmp_path):
    store, report = run(model, tmp_path, 3)
    whole = WholeModel.of(model.tasks)
    assert [record.seconds for record in store.trials(whole)] == [9.0, 8.0, 7.0]
    assert "7 tuned (0.700 x default), 3 trials" in report.notes[0]
    lines = store.path.read_text()
    again, _ = run(model, tmp_path, 3)
    assert store.path.read_text() == lines
    more, report = run(model, tmp_path, 5)
    assert [record.seconds for record in more.trials(whole)][3:] == [6.0, 5.0]
    assert [len(known.past) for known in model.find.asked] == [0, 3, 3]
    assert report.tasks[0].origin.endswith("verified")


def test_a_build_takes_the_combination_and_nothing_else(model, tmp_path):
    (one,) = model.tasks
    store = RecordStore(SITE, tmp_path)
    for role in (TRIAL, VERIFIED):
        store.append(new_record(one, SITE, {"point": FAST}, seconds=1e-3, role=role))
    assert choose([one], MACHINE, store)[one.key].origin == "default"
    run(model, tmp_path, 2)
    choice = choose([one], MACHINE, RecordStore(SITE, tmp_path))[one.key]
    assert choice.point == {**FAST, "keep": 0} and choice.seconds == 1e-3
    other = [one, task(ScaleSpace(), n=48)]  # another model with the same kernel
    assert {c.origin for c in choose(other, MACHINE, RecordStore(SITE, tmp_path)).values()} == {"default"}


def test_a_combination_with_a_foreign_point_counts_as_none(model, tmp_path):
    (one,) = model.tasks
    store = RecordStore(SITE, tmp_path)
    store.append(new_record(WholeModel.of([one]), SITE, {"point": {one.key: {"repeat": 77}}}, seconds=1.0))
    assert choose([one], MACHINE, store)[one.key].origin == "default"
