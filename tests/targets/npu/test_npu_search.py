import pytest

from hetero_tvm import api
from hetero_tvm.targets.npu.driver import open_device
from hetero_tvm.targets.npu.measure import cycles


@pytest.fixture(scope="module")
def plan():
    return api.optimize_model(api.import_model("zoo:minilm-l6-tiny"), "npu:edge")


def test_search_by_simulated_cycles_is_never_worse_and_is_found_again(plan, tmp_path):
    tuned = api.tune_model(plan, trials=16, logs=tmp_path, use_shipped=False)
    assert tuned.report.trials == 16
    assert (tmp_path / "npu-edge.jsonl").is_file()
    with open_device(plan.target.spec) as device:
        for task in (t for t in plan.tasks if t.space is not None and t.space.name.startswith("npu.")):
            default = task.space.default(task.op, plan.machine)
            chosen = tuned.choices[task.key].point
            before = cycles(task.space, task.op, default, plan.machine, device)
            assert cycles(task.space, task.op, chosen, plan.machine, device) <= before
    assert api.build_model(tuned, logs=tmp_path).check().ok
    again = api.tune_model(plan, trials=16, logs=tmp_path, use_shipped=False)
    assert again.report.trials == 0 and again.report.reused > 0
