"""What a row makes of its points: the best that is right, and a record so that builds take it."""

import pytest

from hetero_tvm.machines.gpu import model_named
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.records.choose import choose_one
from hetero_tvm.records.record import TRIAL, VERIFIED, Site, new_record
from hetero_tvm.records.store import RecordStore
from hetero_tvm.schedules.cuda.products.matmul import CudaMatmulSpace

pytest.importorskip("torch")

from benchmarks.gpu.case import Case
from benchmarks.gpu.measure import families_of, task_of, verdict
from benchmarks.gpu.sections.products import FAMILIES, matmul

MACHINE, SPACE = model_named("sm_90a"), CudaMatmulSpace()
CASE = Case(Matmul((512,), 512, 512, (), "float16"), matmul, families=FAMILIES)
TASK = task_of(CASE, SPACE)
TILES = SPACE.knobs(CASE.op, MACHINE)[0].choices
GROUP = next(tile for tile in TILES if FAMILIES["wgmma"]({"tile": tile}))
PLAIN = [tile for tile in TILES if FAMILIES["mma"]({"tile": tile})][:2]
POINTS = {
    name: {"tile": tile, "splits": 1}
    for name, tile in zip(("default", "tuned", "wgmma"), (*PLAIN, GROUP), strict=True)
}


@pytest.fixture
def store(tmp_path):
    store = RecordStore(Site.of(MACHINE, "cuda", "NVIDIA H200"), tmp_path)
    store.append(new_record(TASK, store.site, {"point": POINTS["tuned"]}, seconds=1e-4, role=TRIAL))
    store.append(
        new_record(
            TASK, store.site, {"point": POINTS["tuned"]}, seconds=1e-4, role=VERIFIED, default_seconds=2e-4
        )
    )
    return store


def judged(store, **timed):
    answers = {"default": {"status": "ok", "error": 0.0, "seconds": 2e-4}, **timed}
    return verdict({name: POINTS[name] for name in answers}, answers, TASK, MACHINE, store)


def taken(store):
    return choose_one(TASK, MACHINE, store).point["tile"]


def test_the_searchs_choice_is_confirmed(store):
    row = judged(store, tuned={"status": "ok", "error": 1e-4, "seconds": 1e-4})
    assert row == {"best": "tuned", "error": 1e-4, "default_over_best": 2.0}
    assert taken(store) == PLAIN[1]


def test_a_faster_family_becomes_the_record(store):
    row = judged(
        store,
        tuned={"status": "ok", "error": 0.0, "seconds": 1e-4},
        wgmma={"status": "ok", "error": 0.0, "seconds": 5e-5},
    )
    assert row["best"] == "wgmma" and row["default_over_best"] == 4.0
    assert taken(store) == GROUP


def test_a_wrong_winner_is_told_and_not_taken(store):
    row = judged(store, tuned={"status": "unstable", "error": 1e-4})
    assert row["status"] == "unstable" and row["why"].startswith("tuned {'tile'")
    assert row["best"] == "default" and taken(store) == PLAIN[0]


def test_families_are_compared_with_the_fastest_peer():
    timed = {name: {"status": "ok", "seconds": s} for name, s in zip(POINTS, (4e-4, 2e-4, 1e-4), strict=True)}
    peers = {"cublas": {"seconds": 1e-4}, "cublas_linear": {"seconds": 8e-5}, "none": {"why": "no"}}
    found = families_of(CASE, POINTS, timed, peers)["families"]
    assert found["mma"] == {"seconds": 2e-4, "speed": pytest.approx(0.4)}
    assert found["wgmma"] == {"seconds": 1e-4, "speed": pytest.approx(0.8)}
    del timed["wgmma"]
    assert set(families_of(CASE, POINTS, timed, {})["families"]) == {"mma"}


def test_nothing_is_right(store):
    row = verdict(POINTS, dict.fromkeys(POINTS, {"status": "crash", "why": "fault"}), TASK, MACHINE, store)
    assert row["status"] == "crash" and "best" not in row


def test_without_times_nothing_is_recorded(store):
    before = store.path.read_text()
    answers = {"default": {"status": "ok", "error": 0.0, "seconds": None}}
    assert verdict(POINTS, answers, TASK, MACHINE, store)["best"] == "default"
    assert store.path.read_text() == before


def test_records_are_those_of_the_kernel_in_a_model():
    from hetero_tvm.api import import_model, optimize_model

    optimized = optimize_model(import_model("zoo:minilm-l6-tiny"), target="cuda:sm_90a", precision="f16")
    for task in optimized.tasks:
        again = task_of(Case(task.op, matmul), task.space)
        assert (again.key, again.name) == (task.key, task.op.label)
