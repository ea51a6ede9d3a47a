import pytest

from hetero_tvm import api
from hetero_tvm.targets.npu.device.driver import open_device
from hetero_tvm.targets.npu.tuning.region_timer import RegionTimer


@pytest.fixture(scope="module")
def optimized():
    return api.optimize_model(api.import_model("zoo:minilm-l6-tiny"), "npu:edge")


@pytest.mark.thorough
def test_search_by_simulated_cycles_is_never_worse_and_is_found_again(optimized, tmp_path):
    tuned = api.tune_model(optimized, trials=16, logs=tmp_path, use_shipped=False)
    assert tuned.report.trials == 16
    assert (tmp_path / "npu-edge.jsonl").is_file()
    points = {key: choice.point for key, choice in tuned.choices.items() if choice.point is not None}
    timer = RegionTimer(optimized.module, optimized.tasks, optimized.target)
    with open_device(optimized.target.spec) as device:
        assert timer.cycles(points, device) < timer.cycles({}, device)
    assert api.build_model(tuned, logs=tmp_path).check().ok
    again = api.tune_model(optimized, trials=16, logs=tmp_path, use_shipped=False)
    assert again.report.trials == 0 and again.report.reused > 0
