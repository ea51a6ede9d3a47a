"""What is faster alone must not make the model slower."""

import numpy as np
import pytest

from hetero_tvm import api
from hetero_tvm.records.choose import choose
from hetero_tvm.records.combinations import Known, WholeModel
from hetero_tvm.records.store import VERIFIED, new_record
from hetero_tvm.schedules.npu.base import NpuSpace
from hetero_tvm.targets.npu.device.driver import open_device
from hetero_tvm.targets.npu.isa.stream import Stream
from hetero_tvm.targets.npu.regions.lowering import lower_regions
from hetero_tvm.targets.npu.tuning.region_timer import RegionTimer
from hetero_tvm.targets.npu.tuning.whole_model import search
from tests.targets.npu.isa.programs import at_load
from tests.targets.npu.regions.flag_mutants import Judge, mutants


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


def test_what_comes_to_the_same_code_is_simulated_once(plan):
    task = next(task for task in plan.tasks if task.key in default(plan))
    with open_device(plan.target.spec) as device:
        timer = RegionTimer(plan.module, plan.tasks, plan.target)
        first = timer.cycles({}, device)
        assert timer.cycles({task.key: {**default(plan)[task.key], "keep": 1}}, device) == first
    assert timer.simulated == 1


def task_named(plan, part):
    return next(task for task in plan.tasks if part in task.name and task.key in default(plan))


def searched(plan, trials, known=None, seed=0):
    """What a search finds, and the trials that it tells of."""
    noted = []
    known = known or Known()
    found = search(
        plan.module,
        plan.tasks,
        plan.target,
        known,
        seed,
        lambda: len(noted) < trials,
        lambda combination, seconds, best: noted.append((combination, seconds)),
    )
    assert len(noted) <= trials or not trials
    return found, noted


def test_points_that_cost_the_model_cycles_are_taken_back(plan):
    """However fast they are alone: one that claims to be is timed and left."""
    bad = other(plan)
    assert cycles(plan, bad) > cycles(plan, {})
    found, noted = searched(plan, 2, Known({key: [(point, 1e-9)] for key, point in bad.items()}))
    assert noted[0][0] == {} and noted[1][1] > noted[0][1]
    assert found.combination == {} and found.best == found.default == cycles(plan, {})


def test_the_search_finds_what_only_shows_in_the_model(plan):
    """A known better combination of two changes, or one that is better still."""
    norm, up = task_named(plan, "layer_norm"), task_named(plan, "gelu")
    known = {norm.key: {"rows": 12}, up.key: {"tiles": ("w", 16, 16, 32, 1, 6, 4, 16)}}
    assert cycles(plan, known) < cycles(plan, {})
    alone = {norm.key: [({"rows": rows}, 1e-6 / rows) for rows in (1, 2, 3, 4, 6, 12)]}
    found, noted = searched(plan, 18, Known(alone))
    assert found.default == cycles(plan, {}) and found.best <= cycles(plan, known)
    assert found.best == cycles(plan, found.combination)
    assert len(noted) == 18 and len({str(combination) for combination, _ in noted}) == 18
    again, more = searched(plan, 4, Known(past=noted))
    assert again.best <= found.best and len(more) == 4
    assert not [one for one in more if one in noted]


def test_other_cycles_than_recorded_are_not_believed(plan):
    """The compiler has changed since: what was best is timed again."""
    norm = task_named(plan, "layer_norm")
    lie = {norm.key: {**default(plan)[norm.key], "keep": 0}}
    found, noted = searched(plan, 2, Known(past=[({}, 2e-9), (lie, 1e-9)]))
    assert [combination for combination, _ in noted] == [{}, lie]
    assert found.best == min(cycles(plan, {}), cycles(plan, lie))
    again, more = searched(plan, 0, Known(past=[({}, 2e-9), (lie, 1e-9), *noted]))
    assert again.best == found.best and not more


def test_a_tuned_model_is_never_slower_than_its_defaults(plan, tmp_path):
    """Whatever the records of kernels alone claim, and for whoever builds from the records later."""
    store = api.record_store(plan, tmp_path, use_shipped=False)
    bad = other(plan)
    for task in plan.tasks:
        if task.key in bad:
            candidate = {"point": bad[task.key]}
            store.append(new_record(task, store.site, candidate, seconds=1e-9, role=VERIFIED))
    limit = cycles(plan, {})
    assert cycles(plan, bad) > limit
    built = choose(plan.tasks, plan.machine, store)
    assert {choice.origin for choice in built.values()} == {"default"}
    tuned = api.tune_model(plan, trials=12, logs=tmp_path, use_shipped=False)
    points = {key: choice.point for key, choice in tuned.choices.items() if choice.point is not None}
    assert cycles(plan, points) < limit
    again = api.tune_model(plan, trials=12, logs=tmp_path, use_shipped=False)
    assert again.report.trials == 0 and again.choices == tuned.choices
    more = api.tune_model(plan, trials=14, logs=tmp_path, use_shipped=False)
    points = {key: choice.point for key, choice in more.choices.items() if choice.point is not None}
    assert cycles(plan, points) <= limit
    store = api.record_store(plan, tmp_path, use_shipped=False)
    assert len(store.trials(WholeModel.of(plan.tasks))) == 14
    assert choose(plan.tasks, plan.machine, store) == more.choices
    assert any("whole model" in note for note in tuned.report.notes)
