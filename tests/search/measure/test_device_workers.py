"""Compiling in several processes, measuring in one; every way in which a candidate can fail."""

import pytest

from hetero_tvm.errors import TuningError, UsageError
from hetero_tvm.records.record import VERIFIED, Site
from hetero_tvm.records.store import RecordStore, read_records
from hetero_tvm.search.loop import TuneOptions, tune
from hetero_tvm.search.measure.device_client import LocalDevice
from hetero_tvm.search.measure.device_workers import DeviceWorkers, batch_size
from hetero_tvm.search.measure.service import Job, Limits, contract_spec
from hetero_tvm.targets.registry import parse_target
from tests.search.spaces import MACHINE, BadSpace, RightEveryOther, RightOnce, Scale, TinySpace, task


def measured(result):
    """Whether a candidate was timed; another test may have taken the cores meanwhile."""
    return result.status in ("ok", "disturbed")


DOOR = parse_target("cpu").device_door
ENVIRONMENT = {"HETERO_TVM_THREADS": "2", "HETERO_TVM_PIN": "0"}
LIMITS = Limits(build_seconds=600, run_seconds=600, memory=2 << 30)
GOOD = {"mode": "good", "repeat": 1, "pieces": 2}


@pytest.fixture(scope="module")
def workers():
    device = LocalDevice(DOOR.device, environment=ENVIRONMENT)
    device.open()
    with DeviceWorkers([device], MACHINE, DOOR.compiler, LIMITS, slots=2) as running:
        yield running


def job(mode, **fields):
    if mode == "hang_run":
        fields.setdefault("run_seconds", 1.0)
    return Job("bad", ({"point": {**GOOD, "mode": mode}},), **fields)


FAILURES = {
    "crash": ("crash", "while compiling: killed by SIGSEGV\nlast words"),
    "crash_run": ("crash", "SIGABRT"),
    "hang_run": ("timeout", "no answer within 1 s"),
    "wrong": ("wrong_result", "largest error"),
    "unwritten": ("wrong_result", "nan"),
    "memory": ("build_error", "out of memory"),
    "raise": ("build_error", "cannot emit this"),
    "exit": ("crash", "exit status 7"),
}


@pytest.mark.exhaustive
def test_a_failing_candidate_costs_only_itself(workers):
    workers.add_task("bad", contract_spec(Scale(8, 64), BadSpace()))
    jobs = [job(mode) for mode in FAILURES for mode in (mode, "good")]
    results = dict(workers.measure(jobs))
    assert sorted(results) == list(range(len(jobs)))
    for index, mode in enumerate(FAILURES):
        (result,) = results[2 * index]
        status, text = FAILURES[mode]
        assert (result.status, result.seconds) == (status, None), (mode, result)
        assert text in result.text, (mode, result)
        (after,) = results[2 * index + 1]
        assert measured(after) and after.seconds > 0
    assert {"build", "measure"} <= set(workers.spent)


@pytest.mark.thorough
@pytest.mark.parametrize("space", [RightOnce(), RightEveryOther()], ids=lambda space: space.name)
def test_a_candidate_that_is_wrong_in_later_calls_is_wrong(workers, space):
    workers.add_task("later", contract_spec(Scale(8, 64), space))
    ((_, (result,)),) = workers.measure([Job("later", ({"point": {"repeat": 1, "pieces": 1}},))])
    assert result.status == "wrong_result" and "after the first call: largest error" in result.text


def test_several_candidates_side_by_side(workers):
    workers.add_task("bad", contract_spec(Scale(8, 64), BadSpace()))
    points = [{"point": {**GOOD, "mode": mode}} for mode in ("good", "wrong", "good", "raise")]
    ((_, results),) = workers.measure([Job("bad", tuple(points))])
    assert [result.status for result in results] == ["ok", "wrong_result", "ok", "build_error"]


@pytest.mark.exhaustive
def test_stopping_leaves_the_workers_usable(workers):
    workers.add_task("bad", contract_spec(Scale(8, 64), BadSpace()))
    found = workers.measure([job("good"), job("hang_run"), job("good")], stop=lambda: True)
    assert list(found) == []
    ((_, (result,)),) = workers.measure([job("good")])
    assert measured(result)


@pytest.mark.thorough
def test_a_search_records_what_it_measures(workers, tmp_path):
    store = RecordStore(Site.of(MACHINE, device="Board 1"), tmp_path)
    one = task(TinySpace())
    report = tune([one], MACHINE, TuneOptions(trials=3, limits=LIMITS), store, workers=workers)
    assert report.trials == 3 and not report.failures
    assert report.peak_gflops is None  # what this machine can do says nothing of the device
    records = read_records(store.path)
    assert {record.device for record in records} == {"Board 1"}
    assert [record.role for record in records].count(VERIFIED) == 1
    again = tune([one], MACHINE, TuneOptions(trials=3), RecordStore(store.site, tmp_path), workers=workers)
    assert again.stopped == "nothing to do"


def test_a_device_that_cannot_be_used():
    device = LocalDevice("hetero_tvm.search.measure.device:NoSuchDevice")
    with pytest.raises(TuningError, match="cannot use its device"):
        device.open()
    with pytest.raises(UsageError, match="measured on this machine only"):
        parse_target("npu:mobile").tuner("localhost:9090")


@pytest.mark.thorough
def test_compiling_ahead_tells_what_does_not_compile(workers):
    workers.add_task("bad", contract_spec(Scale(8, 64), BadSpace()))
    found = workers.compile_all([job("good"), job("raise"), job("crash"), job("good")])
    assert [getattr(one, "status", "compiled") for (one,) in found] == [
        "compiled",
        "build_error",
        "crash",
        "compiled",
    ]
    assert found[0][0].is_file() and found[0][0] != found[3][0]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("trials", "tasks", "slots", "expected"),
    [
        (128, 1, 16, 32),
        (128, 1, 2, None),
        (64, 1, 16, 16),
        (128, 12, 16, None),
        (None, 3, 16, 32),
        (2, 1, 16, None),
    ],
)
def test_batches_keep_all_compilers_at_work(trials, tasks, slots, expected):
    assert batch_size(trials, tasks, slots) == expected
