import json
from itertools import pairwise

import pytest

import hetero_tvm
from hetero_tvm import api, profile
from hetero_tvm.benchmarking.subject import _plain_inputs
from hetero_tvm.runtime import npu_usage
from hetero_tvm.targets.npu.device import profile as npu_profile

CLOCK_GHZ = 0.5


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    optimized = api.optimize_model(api.import_model("zoo:minilm-l6-tiny"), "npu:edge")
    return api.build_model(optimized, use_shipped=False).export(tmp_path_factory.mktemp("lib"))


@pytest.fixture(scope="module")
def measured(library, tmp_path_factory):
    """The JSON document and the trace of one run."""
    trace = tmp_path_factory.mktemp("trace") / "trace.json"
    with pytest.MonkeyPatch.context() as patch:
        documents = []
        patch.setattr(profile.cli_common, "print_json", documents.append)
        assert profile.main([str(library), "--json", "--trace", str(trace)]) == 0
    return json.loads(json.dumps(documents[0])), json.loads(trace.read_text())


@pytest.mark.thorough
def test_operators_add_up_to_the_region(measured):
    document, _ = measured
    (region,) = document["regions"]
    operators = region["operators"]

    def total(pick):
        return pytest.approx(sum(pick(op) for op in operators), rel=1e-5)

    assert region["cycles"] == total(lambda op: op["cycles"])
    assert region["macs"] == sum(op["macs"] for op in operators) >= 2 * 12 * 48 * 144 * 2
    moved = region["dram_read_bytes"] + region["dram_write_bytes"]
    assert moved == sum(op["dram_bytes"] for op in operators)
    assert region["energy_joule"] == total(lambda op: op["energy_joule"])
    block = region["matrix_utilisation"] * region["cycles"]
    assert block == total(lambda op: op["matrix_block_cycles"])
    for name, queue in region["queues"].items():
        parts = queue["busy"] + queue["issue"] + queue["idle"] + sum(queue["stall"].values())
        assert parts == pytest.approx(region["cycles"], rel=1e-6)
        assert queue["busy"] == total(lambda op, name=name: op["busy"][name])
        assert queue["issue"] == total(lambda op, name=name: op["issue"][name])
        for reason, cycles in queue["stall"].items():
            found = sum(op["stall"][name][reason] for op in operators)
            assert found == pytest.approx(cycles, rel=1e-5, abs=1e-2)
    assert not [op["name"] for op in operators if op["name"][:2] in ("lv", "gv")]  # the model's own names
    for op in operators:
        assert op["cycles"] >= 0 and op["bound"] in ("matrix", "vector", "dram")
        assert (op["roof_share"] > 0) == (op["cycles"] > 0)
        assert all(cycles >= 0 for queue in op["stall"].values() for cycles in queue.values())
    assert document["totals"]["cycles"] == region["cycles"]
    assert document["totals"]["dram_bytes"] == moved


def test_the_trace_is_one_row_per_queue_in_order(measured):
    """Chrome's trace event format: metadata names rows, complete events lie on them without overlap."""
    document, trace = measured
    (region,) = document["regions"]
    events = trace["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(names.values()) == {"dma_in", "move", "matrix", "vector", "dma_out"}
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["hnpu_0"]
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) + len(names) + 1 == len(events)
    assert {(e["pid"], e["tid"]) for e in complete} == set(names)
    for row, queue in names.items():
        mine = [e for e in complete if (e["pid"], e["tid"]) == row]
        assert all(e["name"] and e["ts"] >= 0 and e["dur"] >= 0 for e in mine)
        for before, after in pairwise(mine):
            assert after["ts"] >= before["ts"] + before["dur"] - 1e-9
        facts = region["queues"][queue]
        worked = facts["busy"] + facts["stall"]["dram"] + facts["stall"]["port"]
        assert sum(e["dur"] for e in mine) * CLOCK_GHZ * 1e3 == pytest.approx(worked, rel=1e-5)
        assert max(e["ts"] + e["dur"] for e in mine) * CLOCK_GHZ * 1e3 <= region["cycles"] + 1e-6


def test_regions_follow_one_another_in_the_trace(library, tmp_path):
    net = hetero_tvm.load(library)
    (region,) = npu_profile.profile(net, lambda: net(**_plain_inputs(net.signature)))
    npu_profile.write_trace(tmp_path / "two.json", [region, region])
    events = json.loads((tmp_path / "two.json").read_text())["traceEvents"]
    first, second = ([e for e in events if e["ph"] == "X" and e["pid"] == pid] for pid in (0, 1))
    end = max(e["ts"] + e["dur"] for e in first)
    for before, after in zip(first, second, strict=True):
        assert after["ts"] - before["ts"] == pytest.approx(1e6 * region.seconds)
        assert after["ts"] >= end - 1e-6


def test_the_runtime_tells_the_same_without_a_compiler(library, measured):
    net = hetero_tvm.load(library)
    profile_inputs = _plain_inputs(net.signature)
    net(**profile_inputs)
    use, total = npu_usage(net), measured[0]["totals"]
    assert (use.regions, use.cycles, use.dram_bytes) == (1, total["cycles"], total["dram_bytes"])
    assert use.seconds == pytest.approx(use.cycles / (CLOCK_GHZ * 1e9)) and use.call_seconds > 0
    assert use.energy_joule == pytest.approx(total["energy_joule"])


def test_tables_for_people(library, capsys):
    assert profile.main([str(library)]) == 0
    text = capsys.readouterr().out
    assert "hnpu_0 on edge" in text and "stall: flag" in text and "of roof" in text


def test_no_operator_is_over_its_roof_and_none_is_lost(measured):
    """Operators overlap: attention runs beside the products around it."""
    document, _ = measured
    for op in document["regions"][0]["operators"]:
        assert 0 < op["roof_share"] <= 1 + 1e-6, op["name"]
        assert 0 < op["cycles"] <= op["active_cycles"] + 1e-6 or op["active_cycles"] > 0
        for share in ("matrix_utilisation", "vector_utilisation", "dram_utilisation"):
            assert 0 <= op[share] <= 1 + 1e-6, (op["name"], share)


def test_a_loaded_library_profiles_itself(library, measured):
    net = hetero_tvm.load(library)
    found = net.profile(**_plain_inputs(net.signature)).to_json()
    assert found["totals"]["cycles"] == measured[0]["totals"]["cycles"]


def test_a_trace_without_a_folder_is_refused(library, tmp_path, capsys):
    assert profile.main([str(library), "--trace", str(tmp_path / "none" / "trace.json")]) == 2
    assert "there is no folder" in capsys.readouterr().err
