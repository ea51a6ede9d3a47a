"""What counts as slower between two files of results."""

import copy
import json

import pytest

from benchmarks.compare import WORSE, main

MACHINE = {"model_name": "a", "microarchitecture": "b", "cores": [0, 1], "simd_bits": 256}


def figure(value, spread=0.0, **more):
    rounds = [value * factor for factor in (1 - spread, 1.0, 1 + spread, 1 - spread, 1 + spread)]
    return {"value": value, "noise": spread, "rounds": rounds, **more}


def document(*rows):
    return {"format": 1, "machine": MACHINE, "threads": 2, "versions": {}, "rows": list(rows)}


def row(value, spread=0.0, **more):
    found = {"suite": "models", "case": "net", "figure": "latency", "unit": "ms", "others": 0.0}
    return {**found, **figure(value, spread), **more}


@pytest.fixture
def compared(tmp_path, capsys):
    def run(old, new, *options):
        paths = []
        for name, content in (("old", old), ("new", new)):
            paths.append(tmp_path / f"{name}.json")
            paths[-1].write_text(json.dumps(content))
        return main([*map(str, paths), *options]), capsys.readouterr().out

    return run


def test_a_file_beside_itself_has_not_changed(compared):
    same = document(row(1.0, 0.1, peers={"other": figure(2.0, 0.1)}))
    status, said = compared(same, same)
    assert status == 0 and "1 figures: 0 worse, 0 better, 0 not judged, 1 as before" in said


@pytest.mark.parametrize(
    ("now", "spread", "status", "word"),
    [
        (1.02, 0.0, 0, "1 as before"),
        (1.2, 0.001, WORSE, "1 worse"),
        (1.2, 0.1, 0, "1 as before"),
        (0.8, 0.0, 0, "1 better"),
    ],
)
def test_a_change_counts_beyond_tolerance_and_noise(compared, now, spread, status, word):
    found, said = compared(document(row(1.0, spread)), document(row(now, spread)))
    assert found == status and word in said


def test_a_slower_machine_is_no_slower_program(compared):
    """Ours and the peer take 1.5 times as long; then only ours."""
    old = document(row(1.0, 0.01, peers={"other": figure(2.0, 0.01, version="1")}))
    drifted = document(row(1.5, 0.01, peers={"other": figure(3.0, 0.01, version="1")}))
    slower = document(row(1.5, 0.01, peers={"other": figure(2.0, 0.01, version="1")}))
    assert compared(old, drifted)[0] == 0
    assert compared(old, drifted, "--absolute")[0] == WORSE
    status, said = compared(old, slower)
    assert status == WORSE and "x 1.500, beside other" in said


def test_a_peer_of_another_version_is_no_measure(compared):
    old = document(row(1.0, 0.01, peers={"other": figure(2.0, version="1")}))
    new = document(row(1.0, 0.01, peers={"other": figure(1.0, version="2")}))
    assert compared(old, new)[0] == 0


def test_more_may_be_better(compared):
    old, new = (document(row(value, 0.001, more=True)) for value in (10.0, 5.0))
    assert compared(old, new)[0] == WORSE and compared(new, old)[0] == 0


def test_counted_figures_have_no_noise(compared):
    old, new = (document(row(value, counted=True, noise=None, rounds=[])) for value in (1000.0, 1002.0))
    assert compared(old, new)[0] == WORSE
    elsewhere = copy.deepcopy(new)
    elsewhere["machine"]["model_name"] = "another"
    assert compared(old, elsewhere)[0] == WORSE


def test_a_figure_without_rounds_is_taken_to_be_noisy(compared):
    old, new = (document(row(value, noise=None, rounds=[])) for value in (1.0, 1.2))
    assert compared(old, new)[0] == 0
    assert compared(old, document(row(2.0, noise=None, rounds=[])))[0] == WORSE


def test_what_others_disturbed_and_other_machines_are_not_judged(compared):
    old, busy = document(row(1.0)), document(row(9.0, others=1.2))
    status, said = compared(old, busy)
    assert status == 0 and "others used 1.2 cores" in said
    assert compared(old, busy, "--busy")[0] == WORSE
    elsewhere = document(row(9.0))
    elsewhere["machine"] = {**MACHINE, "model_name": "another"}
    status, said = compared(old, elsewhere)
    assert status == 0 and "another machine" in said


def test_a_figure_that_is_gone_is_told(compared):
    other = row(1.0)
    other["case"] = "second"
    lost = {"suite": "models", "case": "second", "figure": "", "failed": "crashed"}
    status, said = compared(document(row(1.0), other), document(row(1.0), lost))
    assert status == WORSE and "models / second / latency" in said


def test_files_that_do_not_compare(compared):
    first, second = document(row(1.0)), document({**row(1.0), "case": "other"})
    assert compared(first, second)[0] == 2
    assert compared({"rows": []}, first)[0] == 2
