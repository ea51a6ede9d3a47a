"""What is faster alone must not make the model slower."""

import numpy as np
import pytest

from hetero_tvm import api
from hetero_tvm.schedules.npu.base import NpuSpace
from hetero_tvm.search.choose import choose
from hetero_tvm.targets.npu import whole_model
from hetero_tvm.targets.npu.driver import open_device
from hetero_tvm.targets.npu.lowering import RegionTimer, lower_regions
from hetero_tvm.targets.npu.stream import Stream
from tests.targets.npu.flag_mutants import Judge, mutants
from tests.targets.npu.programs import at_load


@pytest.fixture(scope="module")
def plan():
    return api.optimize_model(api.import_model("zoo:minilm-l6-tiny"), "npu:edge")


def points_of(plan, pick):
    """A point for every task of the NPU: the default, or the last choice of every knob."""
    result = {}
    for task in plan.tasks:
        if isinstance(task.space, NpuSpace):
            result[task.key] = pick(task)
    return result


def default(plan):
    return points_of(plan, lambda task: task.space.default(task.op, plan.machine))


def other(plan):
    def last(task):
        return {knob.name: knob.choices[-1] for knob in task.space.knobs(task.op, plan.machine)}

    return points_of(plan, last)


def cycles(plan, points):
    with open_device(plan.target.spec) as device:
        return RegionTimer(plan.module, plan.tasks, plan.target).cycles(points, device)


@pytest.fixture(scope="module")
def regions(plan):
    return lower_regions(plan.module, plan.tasks, default(plan), plan.target)[1]


def test_the_timer_times_what_is_built(plan, regions):
    with open_device(plan.target.spec) as device:
        built = sum(device.time(device.load(region.stream)).counters.cycles for region in regions)
    assert cycles(plan, default(plan)) == built


def test_a_flag_of_the_model_missing_or_elsewhere(plan, regions):
    """Between kernels, too, the simulator says what an independent judge of happens-before says."""
    (region,) = regions
    stream = Stream.from_bytes(region.stream)
    made = [stream, *mutants(stream, np.random.default_rng(2), 12)]
    judge = Judge(stream)
    with open_device(plan.target.spec) as device:
        verdicts = [at_load(device, mutant.to_bytes()) for mutant in made]
    assert verdicts == [judge.verdict(mutant) for mutant in made]
    assert verdicts[0] == "ok" and verdicts.count("data race") >= 4


def test_points_that_cost_the_model_cycles_are_taken_back(plan):
    good, bad = default(plan), other(plan)
    assert cycles(plan, bad) > cycles(plan, good)
    found = whole_model.search(plan.module, plan.tasks, [bad], {}, plan.target, 0)
    assert found.points == good and found.started == cycles(plan, bad)


def test_the_search_finds_what_only_shows_in_the_model(plan):
    """How kernels are placed, and points that were measured alone, in any order of their times."""
    bad, good = other(plan), default(plan)
    measured = {key: [(bad[key], 1e-6), (good[key], 2e-6)] for key in good}
    found = whole_model.search(plan.module, plan.tasks, [bad], measured, plan.target, 12)
    assert found.trials == 12 and found.cycles == cycles(plan, found.points) <= found.default
    placed = {key: {**point, "keep": 0} for key, point in good.items()}
    assert cycles(plan, placed) != cycles(plan, good)


def test_a_tuned_model_is_never_slower_than_its_defaults(plan, tmp_path, monkeypatch):
    """Also for whoever builds from the records later, and whatever the search found."""
    searched = []
    reconsider = type(plan.target).reconsider

    def first_look(target, module, tasks, starts, *more):
        searched.append(starts[0])
        return reconsider(target, module, tasks, starts, *more)

    monkeypatch.setattr(type(plan.target), "reconsider", first_look)
    # Every record is a bad one that claims to have won.
    monkeypatch.setattr(api, "tune", lambda *args, **kwargs: pretend(plan, args[3]))
    tuned = api.tune_model(plan, trials=1, logs=tmp_path, use_shipped=False)
    limit = cycles(plan, default(plan))
    assert cycles(plan, searched[0]) > limit
    points = {key: choice.point for key, choice in tuned.choices.items() if choice.point is not None}
    assert cycles(plan, points) <= limit
    store = api.record_store(plan, tmp_path, use_shipped=False)
    again = choose(plan.tasks, plan.machine, store)
    assert {key: choice.point for key, choice in again.items()} == {
        key: choice.point for key, choice in tuned.choices.items()
    }
    assert any("whole model" in note for note in tuned.report.notes)


def pretend(plan, store):
    from hetero_tvm.search.outcome import TaskReport, TuneReport
    from hetero_tvm.search.records import VERIFIED, new_record

    bad = other(plan)
    mine = [task for task in plan.tasks if task.key in bad]
    for task in mine:
        point = {"point": bad[task.key]}
        store.append(new_record(task, store.site, point, seconds=1e-9, role=VERIFIED, default_seconds=2e-9))
    return TuneReport([TaskReport(task.name, task.count, task.flops, task.nbytes) for task in mine], trials=1)
