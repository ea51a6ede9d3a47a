"""Ranking without measuring."""

import pytest

from hetero_tvm.api import build_model, import_model, optimize_model, tune_model
from hetero_tvm.search.records import read_records
from hetero_tvm.targets.cuda.rank import WARNING, pick, refusal
from tests.targets.cuda.conftest import compiler  # noqa: F401


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


def test_a_model_is_ranked_and_says_that_nothing_was_measured(tmp_path, compiler):  # noqa: F811
    plan = optimize_model(import_model("zoo:llama-160m-tiny"), target="cuda:sm_80", precision="f16")
    tuned = tune_model(plan, trials=8, logs=tmp_path, use_shipped=False)
    assert tuned.report.warnings == [WARNING]
    assert 0 < tuned.report.trials <= 8
    assert tuned.report.total_seconds("tuned_seconds") is None
    assert set(tuned.choices) == {task.key for task in plan.tasks}
    records = read_records(next(tmp_path.iterdir()))
    assert records and {(r.role, r.status, r.seconds) for r in records} == {("ranked", "unmeasured", None)}
    built = build_model(tuned, logs=tmp_path, use_shipped=False)
    assert all(facts["stack"] == 0 for facts in built.facts["sm_80"].values())
