"""Which records count: none of a spell, none that are to be forgotten, none of other machines."""

import dataclasses

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.records.choose import choose_one
from hetero_tvm.records.record import BASELINE, DISTURBED, TRIAL, VERIFIED, Record, Site, new_record
from hetero_tvm.records.store import RecordStore
from hetero_tvm.schedules.base import Knob
from hetero_tvm.schedules.cpu.products.matmul import MatmulSpace
from hetero_tvm.schedules.task import Task, task_key
from tests.search.spaces import MACHINE, ScaleSpace, task

SITE = Site.of(MACHINE)
TASK = task(ScaleSpace())
SLOW, FAST = {"repeat": 8, "pieces": 1}, {"repeat": 1, "pieces": 1}


def put(store, point, seconds, site=SITE, of=TASK, **fields):
    store.append(new_record(of, site, {"point": point}, seconds=seconds, **fields))


def test_a_disturbed_trial_makes_void_what_was_recorded_of_its_candidate(tmp_path):
    store = RecordStore(SITE, tmp_path)
    put(store, SLOW, 1.0)
    put(store, FAST, 1e-9)
    put(store, FAST, 5.0, status=DISTURBED, disturbed=0.7)
    again = RecordStore(SITE, tmp_path)
    assert [record.point for record in again.measured(TASK).values()] == [SLOW]
    assert len(again.trials(TASK)) == 1 and again.best(TASK)[0].point == SLOW
    put(again, FAST, 0.5)
    assert again.best(TASK)[0].point == FAST and len(again.trials(TASK)) == 2


def test_a_baseline_that_was_disturbed_takes_no_trial_back(tmp_path):
    store = RecordStore(SITE, tmp_path)
    put(store, SLOW, 1.0)
    put(store, SLOW, 5.0, role=BASELINE, status=DISTURBED, disturbed=0.7)
    again = RecordStore(SITE, tmp_path)
    assert [record.seconds for record in again.trials(TASK)] == [1.0]
    assert [record.seconds for record in again.measured(TASK).values()] == [1.0]


def test_dispersion_and_contract_are_kept(tmp_path):
    store = RecordStore(SITE, tmp_path)
    put(store, FAST, 1.0, spread=0.12)
    (record,) = RecordStore(SITE, tmp_path).trials(TASK)
    assert record.spread == 0.12 and record.op == TASK.op.to_json() and record.disturbed == 0
    old = Record.from_json(dataclasses.replace(record, op="", spread=0.0).to_json())
    assert old.op == "" and old.spread == 0


def test_what_is_told_to_be_forgotten_counts_no_more(tmp_path):
    shipped = RecordStore(SITE, tmp_path / "shipped")
    put(shipped, SLOW, 1e-6, role=VERIFIED)
    store = RecordStore(SITE, tmp_path / "user", tmp_path / "shipped")
    put(store, FAST, 1e-9)
    store.forget(TASK)
    assert store.measured(TASK) == {} and store.trials(TASK) == []
    put(store, FAST, 2.0)
    again = RecordStore(SITE, tmp_path / "user", tmp_path / "shipped")
    assert [record.seconds for record in again.measured(TASK).values()] == [2.0]
    assert len(RecordStore(SITE, tmp_path / "user").measured(task(ScaleSpace(), rows=32))) == 0


def test_winners_of_other_machines_may_be_asked_for(tmp_path):
    store = RecordStore(SITE, tmp_path)
    four = dataclasses.replace(SITE, threads=4)
    elsewhere = dataclasses.replace(SITE, mcpu="other", isa="x")
    put(store, SLOW, 1.0, site=elsewhere)
    put(store, FAST, 2.0, site=elsewhere, role=VERIFIED)
    put(store, SLOW, 3.0, site=four, role=TRIAL)
    again = RecordStore(SITE, tmp_path)
    RecordStore(elsewhere, tmp_path).append(
        new_record(TASK, elsewhere, {"point": FAST}, seconds=2.0, role=VERIFIED)
    )
    found = RecordStore(SITE, tmp_path).neighbours(TASK)
    assert [(r.mcpu, r.threads, r.point) for r in found] == [
        (SITE.mcpu, 4, SLOW),
        ("other", SITE.threads, FAST),
    ]
    assert again.best(TASK) is None and choose_one(TASK, MACHINE, again).origin == "default"


class CutSpace(MatmulSpace):
    """A space to which a decision was added, which its default makes use of."""

    name = "test.cut"

    def knobs(self, op, machine):
        return (Knob("unroll", (4, 1)), Knob("cuts", (1, 2), absent=1))

    def default(self, op, machine):
        return {"unroll": 4, "cuts": 2 if op.k > 100 else 1}


def test_a_record_older_than_a_decision_of_the_default_does_not_override_it(tmp_path):
    machine = CpuModel("old", lanes=8)
    site = Site.of(machine)
    for k, origin in ((64, "record"), (256, "default")):
        op = Matmul((4,), 8, k)
        workload = op.workload()
        one = Task(task_key(workload), op.label, op, workload, CutSpace(), (), op.flops, op.nbytes)
        store = RecordStore(site, tmp_path / str(k))
        store.append(new_record(one, site, {"point": {"unroll": 1}}, seconds=1e-3, role=VERIFIED))
        assert choose_one(one, machine, store).origin.startswith(origin)
        store.append(new_record(one, site, {"point": {"unroll": 1, "cuts": 1}}, seconds=1e-3, role=VERIFIED))
        assert choose_one(one, machine, store).point == {"unroll": 1, "cuts": 1}
