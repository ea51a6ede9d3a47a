"""Ranking without measuring."""

import pytest

from hetero_tvm.api import build_model, import_model, optimize_model, record_store, tune_model
from hetero_tvm.records.record import new_record
from hetero_tvm.records.store import read_records
from hetero_tvm.search.cost_model import SpaceModel
from hetero_tvm.search.progress import describe, share_done
from hetero_tvm.targets.cuda.ranking import WARNING, candidates, pick, refusal, trained


def known(stack=0, occupancy=0.5):
    return {"registers": 64, "stack": stack, "shared": 0, "occupancy": occupancy}


@pytest.mark.parametrize(
    ("candidates", "best"),
    [
        ([known(), known()], 0),
        ([known(stack=8), known()], 1),
        ([known(occupancy=0.0), "does not compile", known()], 2),
        ([known(occupancy=0.1), known(occupancy=0.2)], 1),  # more warps, up to a quarter
        ([known(occupancy=0.3), known(occupancy=1.0)], 0),  # beyond it the space's order counts
        ([known(stack=8), "does not compile"], None),
    ],
)
def test_pick(candidates, best):
    assert pick(candidates) == best


def test_refusals():
    assert refusal("text") == "build_error"
    assert refusal(known(stack=4)) == "spills" and refusal(known(occupancy=0.0)) == "does_not_fit"
    assert refusal(known()) is None


@pytest.mark.thorough
def test_a_model_is_ranked_and_says_that_nothing_was_measured(tmp_path, compiler):
    plan = optimize_model(import_model("zoo:llama-160m-tiny"), target="cuda:sm_80", precision="f16")
    events = []
    tuned = tune_model(plan, trials=8, logs=tmp_path, use_shipped=False, on_event=events.append)
    assert tuned.report.warnings == [WARNING]
    assert [share_done(event) for event in (events[0], events[-1])] == [1 / 8, 1.0]
    assert describe(events[-1]).startswith(f"trials {tuned.report.trials}/8")
    assert 0 < tuned.report.trials <= 8
    assert tuned.report.total_seconds("tuned_seconds") is None
    assert set(tuned.choices) == {task.key for task in plan.tasks}
    records = read_records(next(tmp_path.iterdir()))
    assert records and {(r.role, r.status, r.seconds) for r in records} == {("ranked", "unmeasured", None)}
    built = build_model(tuned, logs=tmp_path, use_shipped=False)
    assert all(facts["stack"] == 0 for facts in built.facts["sm_80"].values())


def test_what_was_measured_on_the_architecture_bends_the_order(tmp_path, compiler):
    plan = optimize_model(import_model("zoo:llama-160m-tiny"), target="cuda:sm_80", precision="f16")
    task = next(task for task in plan.tasks if task.space is not None and task.space.name == "cuda.matmul")
    store, target = record_store(plan, tmp_path, False), plan.target
    knobs = task.space.knobs(task.op, plan.machine)
    plain = candidates(task, target, trained([task], target, store)["cuda.matmul"], 16)
    assert plain[0] == {knob.name: knob.choices[0] for knob in knobs}  # the likely choices first
    assert dict(task.space.default(task.op, plan.machine)) in candidates(task, target, SpaceModel(), 1)
    for seconds, point in zip(range(len(plain), 0, -1), plain, strict=True):  # the last is the fastest
        store.append(new_record(task, store.site, {"point": point}, seconds=float(seconds)))
    bent = candidates(task, target, trained([task], target, store)["cuda.matmul"], 16)
    assert plain.index(bent[0]) > 8
