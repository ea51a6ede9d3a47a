import json

import pytest

from hetero_tvm import api, profile


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    plan = api.optimize_model(api.import_model("zoo:minilm-l6-tiny"), "npu:edge")
    return api.build_model(plan, use_shipped=False).export(tmp_path_factory.mktemp("lib"))


def test_operators_add_up_and_the_trace_has_a_row_per_queue(library, tmp_path, capsys):
    trace = tmp_path / "trace.json"
    assert profile.main([str(library), "--json", "--trace", str(trace)]) == 0
    (region,) = json.loads(capsys.readouterr().out)["regions"]
    assert 0 < region["matrix_utilisation"] < 1 and region["energy_joule"] > 0
    assert sum(op["cycles"] for op in region["operators"]) == pytest.approx(region["cycles"], rel=0.05)
    assert sum(op["macs"] for op in region["operators"]) >= 2 * 12 * 48 * 144 * 2
    for queue in region["queues"].values():
        parts = queue["busy"] + queue["issue"] + queue["idle"] + sum(queue["stall"].values())
        assert parts == pytest.approx(region["cycles"], rel=1e-6)
    events = json.loads(trace.read_text())["traceEvents"]
    rows = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert rows == {"dma_in", "move", "matrix", "vector", "dma_out"}
    assert {e["tid"] for e in events if e["ph"] == "X"} == {0, 1, 2, 3, 4}


def test_tables_for_people(library, capsys):
    assert profile.main([str(library)]) == 0
    text = capsys.readouterr().out
    assert "hnpu_0 on edge" in text and "stall: flag" in text


def test_a_library_of_another_target_is_refused(tmp_path, capsys):
    plan = api.optimize_model(api.import_model("zoo:bert-base-tiny"), "cpu")
    path = api.build_model(plan).export(tmp_path)
    assert profile.main([str(path)]) == 2
    assert "runs nothing on an NPU" in capsys.readouterr().err
