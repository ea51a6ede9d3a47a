"""Search over whole models: a point that is faster alone must not make the model slower."""

import numpy as np
import pytest

from hetero_tvm import api
from hetero_tvm.frontend.kernels.importer import import_description
from hetero_tvm.records.choose import choose
from hetero_tvm.records.combinations import Known, WholeModel
from hetero_tvm.records.record import VERIFIED, new_record
from hetero_tvm.schedules.npu.base import NpuSpace
from hetero_tvm.targets.npu.device.driver import open_device
from hetero_tvm.targets.npu.isa.stream import Stream
from hetero_tvm.targets.npu.regions.lowering import lower_regions
from hetero_tvm.targets.npu.tuning.region_timer import RegionTimer
from hetero_tvm.targets.npu.tuning.whole_model import search
from tests.frontend.kernels.helpers import single
from tests.targets.npu.isa.programs import at_load
from tests.targets.npu.regions.flag_mutants import Judge, mutants


@pytest.fixture(scope="module")
def optimized():
    return api.optimize_model(api.import_model("zoo:minilm-l6-tiny"), "npu:edge")


def points_of(optimized, pick):
    """A point for every task of the NPU: the default, or the last choice of every knob."""
    result = {}
    for task in optimized.tasks:
        if isinstance(task.space, NpuSpace):
            result[task.key] = pick(task)
    return result


def default(optimized):
    return points_of(optimized, lambda task: task.space.default(task.op, optimized.machine))


def other(optimized):
    def last(task):
        return {knob.name: knob.choices[-1] for knob in task.space.knobs(task.op, optimized.machine)}

    return points_of(optimized, last)


def cycles(optimized, points):
    with open_device(optimized.target.spec) as device:
        return RegionTimer(optimized.module, optimized.tasks, optimized.target).cycles(points, device)


@pytest.fixture(scope="module")
def regions(optimized):
    return lower_regions(optimized.module, optimized.tasks, default(optimized), optimized.target)[1]


def test_the_timer_times_what_is_built(optimized, regions):
    with open_device(optimized.target.spec) as device:
        built = sum(device.time(device.load(region.stream)).counters.cycles for region in regions)
    assert cycles(optimized, default(optimized)) == built


@pytest.mark.thorough
def test_a_flag_of_the_model_missing_or_elsewhere(optimized, regions):
    """Between kernels, too, the simulator says what an independent judge of happens-before says."""
    (region,) = regions
    stream = Stream.from_bytes(region.stream)
    made = [stream, *mutants(stream, np.random.default_rng(2), 12)]
    judge = Judge(stream)
    with open_device(optimized.target.spec) as device:
        verdicts = [at_load(device, mutant.to_bytes()) for mutant in made]
    assert verdicts == [judge.verdict(mutant) for mutant in made]
    assert verdicts[0] == "ok" and verdicts.count("data race") >= 4


def test_what_comes_to_the_same_code_is_simulated_once(optimized):
    task = next(task for task in optimized.tasks if task.key in default(optimized))
    with open_device(optimized.target.spec) as device:
        timer = RegionTimer(optimized.module, optimized.tasks, optimized.target)
        first = timer.cycles({}, device)
        assert timer.cycles({task.key: {**default(optimized)[task.key], "keep": 1}}, device) == first
    assert timer.simulated == 1


def task_named(optimized, part):
    return next(task for task in optimized.tasks if part in task.name and task.key in default(optimized))


def searched(optimized, trials, known=None, seed=0):
    """Result of a search, and the trials that it reports."""
    noted = []
    known = known or Known()
    found = search(
        optimized.module,
        optimized.tasks,
        optimized.target,
        known,
        seed,
        lambda: len(noted) < trials,
        lambda combination, seconds, best: noted.append((combination, seconds)),
    )
    assert len(noted) <= trials or not trials
    return found, noted


@pytest.mark.thorough
def test_points_that_cost_the_model_cycles_are_taken_back(optimized):
    """However fast they are alone: one that claims to be is timed and left."""
    bad = other(optimized)
    assert cycles(optimized, bad) > cycles(optimized, {})
    found, noted = searched(optimized, 2, Known({key: [(point, 1e-9)] for key, point in bad.items()}))
    assert noted[0][0] == {} and noted[1][1] > noted[0][1]
    assert found.combination == {} and found.best == found.default == cycles(optimized, {})


@pytest.mark.thorough
def test_the_search_finds_what_only_shows_in_the_model(optimized):
    """A known better combination of two changes, or one that is better still."""
    norm, up = task_named(optimized, "layer_norm"), task_named(optimized, "gelu")
    known = {norm.key: {"rows": 12}, up.key: {"tiles": ("w", 16, 16, 32, 1, 6, 4, 16)}}
    assert cycles(optimized, known) < cycles(optimized, {})
    alone = {norm.key: [({"rows": rows}, 1e-6 / rows) for rows in (1, 2, 3, 4, 6, 12)]}
    found, noted = searched(optimized, 18, Known(alone))
    assert found.default == cycles(optimized, {}) and found.best <= cycles(optimized, known)
    assert found.best == cycles(optimized, found.combination)
    assert len(noted) == 18 and len({str(combination) for combination, _ in noted}) == 18
    again, more = searched(optimized, 4, Known(past=noted))
    assert again.best <= found.best and len(more) == 4
    assert not [one for one in more if one in noted]


@pytest.mark.thorough
def test_other_cycles_than_recorded_are_not_believed(optimized):
    """The compiler has changed since: what was best is timed again."""
    norm = task_named(optimized, "layer_norm")
    lie = {norm.key: {**default(optimized)[norm.key], "keep": 0}}
    found, noted = searched(optimized, 2, Known(past=[({}, 2e-9), (lie, 1e-9)]))
    assert [combination for combination, _ in noted] == [{}, lie]
    assert found.best == min(cycles(optimized, {}), cycles(optimized, lie))
    again, more = searched(optimized, 0, Known(past=[({}, 2e-9), (lie, 1e-9), *noted]))
    assert again.best == found.best and not more


@pytest.mark.thorough
def test_a_tuned_model_is_never_slower_than_its_defaults(optimized, tmp_path):
    """Whatever the records of kernels alone claim, and for whoever builds from the records later."""
    store = api.record_store(optimized, tmp_path, use_shipped=False)
    bad = other(optimized)
    for task in optimized.tasks:
        if task.key in bad:
            candidate = {"point": bad[task.key]}
            store.append(new_record(task, store.site, candidate, seconds=1e-9, role=VERIFIED))
    limit = cycles(optimized, {})
    assert cycles(optimized, bad) > limit
    built = choose(optimized.tasks, optimized.machine, store)
    assert {choice.origin for choice in built.values()} == {"default"}
    tuned = api.tune_model(optimized, trials=12, logs=tmp_path, use_shipped=False)
    points = {key: choice.point for key, choice in tuned.choices.items() if choice.point is not None}
    assert cycles(optimized, points) < limit
    again = api.tune_model(optimized, trials=12, logs=tmp_path, use_shipped=False)
    assert again.report.trials == 0 and again.choices == tuned.choices
    more = api.tune_model(optimized, trials=14, logs=tmp_path, use_shipped=False)
    points = {key: choice.point for key, choice in more.choices.items() if choice.point is not None}
    assert cycles(optimized, points) <= limit
    store = api.record_store(optimized, tmp_path, use_shipped=False)
    assert len(store.trials(WholeModel.of(optimized.tasks))) == 14
    assert choose(optimized.tasks, optimized.machine, store) == more.choices
    assert any("whole model" in note for note in tuned.report.notes)


def test_a_model_of_which_nothing_goes_to_the_npu_has_no_combinations():
    model = import_description(single("Exp", [(4, 8)], (4, 8)))
    small = api.optimize_model(model, "npu:edge")
    found = search(small.module, small.tasks, small.target, Known(), 0, lambda: True, lambda *trial: None)
    assert found is None
