"""Which points the smoke test checks, and that one failure stops nothing."""

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from benchmarks.gpu import smoke
from benchmarks.gpu.results_file import ResultsFile
from benchmarks.gpu.sections import SECTIONS, section_named
from hetero_tvm.schedules.cuda.products.tiles import Tile
from hetero_tvm.search.measure.service import BUILD_ERROR, Result
from hetero_tvm.targets.cuda.spaces import CUDA_SPACES
from hetero_tvm.targets.registry import parse_target

TARGET = parse_target("cuda:sm_90a")


class FakeWorkers:
    """Compiles everything but the ``bad``-th candidate."""

    def __init__(self, folder, bad):
        self.folder, self.bad, self.machines = folder, bad, []

    def use(self, machine):
        self.machines.append(machine)

    def add_task(self, name, spec):
        json.dumps(spec)

    def compile_all(self, jobs):
        good = [[self.folder / f"{i}.so"] for i in range(len(jobs))]
        if jobs:
            good[self.bad] = [Result(BUILD_ERROR, None, "nvcc: no")]
        return good


def test_defaults_come_first_and_other_points_are_of_the_space():
    wanted, refused = smoke.smoke_points(SECTIONS, TARGET, more=True)
    assert not refused
    names = [one.name for one in wanted]
    assert names == sorted(names, key=["default", "last", "random"].index)
    assert {one.space.name for one in wanted if one.name == "default"} == {s.name for s in CUDA_SPACES}
    for one in wanted:
        one.space.check(one.case.op, one.point, one.target.machine)
    tiles = [Tile.of(one.point["tile"]) for one in wanted if one.section == "matmul" and one.name == "last"]
    assert any(tile.group for tile in tiles)  # warp groups are among what is checked


def test_failures_are_listed_and_nothing_stops(tmp_path, capsys):
    section = section_named("softmax")
    labels = [case.label for case in section.small]
    answers = iter([{"status": "crash", "why": "illegal access"}, {"status": "ok"}, {"status": "ok"}])
    asked = []

    def ask(request, seconds):
        asked.append((request["label"], request["library"]))
        return next(answers)

    setup = SimpleNamespace(
        target=TARGET, workers=FakeWorkers(tmp_path, bad=1), worker=SimpleNamespace(ask=ask)
    )
    results = ResultsFile(tmp_path / "r.json", {"device": {"name": "GPU"}}, 5)
    failed = smoke.smoke([section], setup, results, more=False)
    assert [label for label, _ in asked] == [labels[0], *labels[2:]]
    assert len(failed) == 2 and "illegal access" in failed[0] and "nvcc: no" in failed[1]
    told = capsys.readouterr().err
    assert "2 of 4 points are right" in told and f"FAILED {labels[0]} default" in told
    assert smoke.smoke([section], setup, results, more=False) == []  # not again


def test_only_defaults_when_points_cost_much(tmp_path, monkeypatch):
    monkeypatch.setattr(smoke, "_MORE_SECONDS", -1.0)
    section, asked = section_named("softmax"), []
    worker = SimpleNamespace(ask=lambda request, seconds: asked.append(request) or {"status": "ok"})
    setup = SimpleNamespace(target=TARGET, workers=FakeWorkers(tmp_path, bad=-1), worker=worker)
    smoke.smoke([section], setup, ResultsFile(None, {"device": {"name": "GPU"}}, 5), more=True)
    assert len(asked) == len(section.small)
