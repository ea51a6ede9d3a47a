"""Several searches at the same time, appending to one file of records."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from hetero_tvm.machines import roofs
from hetero_tvm.records.appending import alone_in
from hetero_tvm.records.record import Site, new_record
from hetero_tvm.records.store import RecordStore
from hetero_tvm.search.loop import tune
from hetero_tvm.search.options import TuneOptions
from hetero_tvm.search.task_state import candidate_of
from tests.search.spaces import MACHINE, TupleSpace, task

SITE = Site.of(MACHINE)
ROOT = Path(__file__).resolve().parents[2]

TUNER = """
import json, sys
from hetero_tvm.machines import roofs
from hetero_tvm.records.record import Site
from hetero_tvm.records.store import RecordStore
from hetero_tvm.search.ledger import Ledger
from hetero_tvm.search.loop import TuneOptions, tune
from hetero_tvm.search.proposer import PointProposer
from tests.search.spaces import MACHINE, WideSpace, task

roofs.measure = lambda threads: roofs.Roofs(100.0, 10.0)
store = RecordStore(Site.of(MACHINE), sys.argv[1])
known, again = set(), []

def text(point):
    return json.dumps(point, sort_keys=True)

def take_in_others(ledger, original=Ledger.take_in_others):
    lines = store.path.read_text().split("\\n")[:-1] if store.path.exists() else []
    known.update(text(json.loads(line)["point"]) for line in lines)
    original(ledger)

appended = []

def append(store, record, original=RecordStore.append):
    original(store, record)
    appended.append(record)

def propose(proposer, most, original=PointProposer.propose):
    found = original(proposer, most)
    again.extend(c for c in found if text(c["point"]) in known)
    return found

Ledger.take_in_others, PointProposer.propose, RecordStore.append = take_in_others, propose, append
report = tune([task(WideSpace(), rows=64, n=512)], MACHINE, TuneOptions(trials=int(sys.argv[2])), store)
print(json.dumps([len(appended), report.stopped, len(again), report.warnings]))
"""


def tuners(folder, count, trials):
    """Reports of searches that were started together."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", TUNER, str(folder), str(trials)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        for _ in range(count)
    ]
    outputs = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0] * count
    return [json.loads(output) for output in outputs]


@pytest.fixture(autouse=True)
def quick_roofs(monkeypatch):
    monkeypatch.setattr(roofs, "measure", lambda threads: roofs.Roofs(100.0, 10.0))


@pytest.mark.thorough
def test_what_another_search_records_meanwhile_is_learned_and_counted(tmp_path, workers):
    tuned = task(TupleSpace(), rows=64, n=512)
    theirs = [(repeat, pieces) for repeat in (4, 2) for pieces in (1, 2, 4)]

    def measured():
        return [candidate_of(record) for record in RecordStore(SITE, tmp_path).trials(tuned)]

    def on_event(event):
        if event["event"] == "trial" and event["trials"] == 2:  # the first round is through
            other = RecordStore(SITE, tmp_path)
            for tile in theirs:
                if {"tile": tile} not in [dict(c["point"]) for c in measured()]:
                    other.append(new_record(tuned, SITE, {"point": {"tile": tile}}, seconds=1e-4))

    report = tune(
        [tuned], MACHINE, TuneOptions(trials=100, batch=2), RecordStore(SITE, tmp_path), on_event, workers
    )
    points = [candidate["point"]["tile"] for candidate in measured()]
    assert len(points) == len(set(points)) == 12 and report.stopped == "exhausted"
    assert report.trials + report.reused == 12 and report.reused >= 4


@pytest.mark.thorough
def test_the_second_search_of_a_folder_draws_from_another_seed(tmp_path, workers):
    tuned = task(TupleSpace(), rows=64, n=512)
    with alone_in(tmp_path):
        report = tune([tuned], MACHINE, TuneOptions(trials=1), RecordStore(SITE, tmp_path), workers=workers)
    assert [text for text in report.warnings if "a seed of its own" in text]
    report = tune([tuned], MACHINE, TuneOptions(trials=2), RecordStore(SITE, tmp_path), workers=workers)
    assert not [text for text in report.warnings if "a seed of its own" in text]


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [2, 4])
def test_several_searches_share_their_trials(tmp_path, count):
    trials = 10 * count
    reports = tuners(tmp_path, count, trials)
    (path,) = tmp_path.iterdir()  # no lock is left
    records = [json.loads(line) for line in path.read_text().splitlines()]  # no line is torn
    assert len(records) == sum(report[0] for report in reports)  # none is lost
    points = Counter(json.dumps(r["point"]) for r in records if r["role"] == "trial" and r["status"] == "ok")
    assert [report[2] for report in reports] == [0] * count  # nothing on disk is proposed again
    assert {report[1] for report in reports} == {"trials"}
    in_flight = 8 * count
    assert trials - in_flight <= points.total() <= trials + in_flight
    # The default is everybody's first; a batch may meet another that is in flight.
    assert points.total() - len(points) <= in_flight
    alone = [not any("another search" in text for text in report[3]) for report in reports]
    assert alone.count(True) == 1
