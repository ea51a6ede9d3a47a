"""Design spaces of users: schedules that sample, as candidates of the search and as defaults."""

import json

import numpy as np
import pytest

from hetero_tvm import design_space
from hetero_tvm.api import build_model, optimize_model, tune_op
from hetero_tvm.errors import UsageError
from hetero_tvm.frontend.functions.importer import import_function
from hetero_tvm.host.tvm import te
from hetero_tvm.records.candidates import default_candidate
from hetero_tvm.records.record import space_identity
from tests.frontend.functions.test_importer import scaled_product


@design_space("product", version=3)
def tiled(schedule, machine):
    block = schedule.get_sblock("C")
    i, j, k = schedule.get_loops(block)
    i0, i1 = schedule.split(i, schedule.sample_perfect_tile(i, 2, 4, decision=[4, 4]))
    j0, j1 = schedule.split(j, schedule.sample_perfect_tile(j, 2, machine.lanes, decision=[4, 8]))
    schedule.reorder(i0, j0, k, i1, j1)
    schedule.parallel(i0)
    schedule.vectorize(j1)


@design_space("product")
def undecided(schedule):
    i, j, _ = schedule.get_loops(schedule.get_sblock("C"))
    schedule.split(i, schedule.sample_perfect_tile(i, 2))
    schedule.split(j, schedule.sample_perfect_tile(j, 2))


@design_space("product")
def stumbles(schedule):
    schedule.get_sblock("no such block")


def optimized(*spaces):
    return optimize_model(import_function(scaled_product(16, 8, 32), name="product"), spaces=spaces)


def test_a_space_with_decisions_has_a_default_and_it_is_what_is_built():
    model = optimized(tiled)
    (task,) = model.tasks
    assert (task.space, task.sampled, space_identity(task)) == (None, tiled, ("user.tiled", 3))
    default = default_candidate(task, model.machine)
    assert "Vectorize" in default["trace"] and "[4, 8]" in default["trace"]
    built = build_model(model)
    assert built.choices[task.key].trace == default["trace"]
    assert built.check().ok


def test_a_space_that_leaves_all_to_the_search_starts_from_the_generic_schedule():
    model = optimized(undecided)
    assert default_candidate(model.tasks[0], model.machine) == {"generic": True}
    assert build_model(model).check().ok


def test_other_kernels_keep_their_spaces():
    x = te.placeholder((4, 8), name="x")
    model = optimize_model(
        import_function([x, te.compute((4, 8), lambda i, j: x[i, j] + 1.0, name="y")], name="other"),
        spaces=[tiled],
    )
    assert model.tasks[0].sampled is None


@pytest.mark.exhaustive
def test_a_search_in_it_finds_learns_and_resumes(tmp_path):
    op = scaled_product(16, 8, 32)
    for trials in (6, 10):
        tuned = tune_op(
            op, name="product", spaces=[tiled], trials=trials, logs=tmp_path, use_shipped=False, patience=0
        )
        assert tuned.report.tasks[0].trials > 0
    lines = "".join(path.read_text() for path in tmp_path.glob("*.jsonl")).splitlines()
    records = list(map(json.loads, lines))
    traces = [record["trace"] for record in records if (record["role"], record["status"]) == ("trial", "ok")]
    assert len(set(traces)) == len(traces) > 1  # none is timed twice
    assert {record["space"] for record in records} == {"user.tiled"}
    assert build_model(tuned).check().ok


@design_space("product")
def decided_in_python(schedule):
    i, _, _ = schedule.get_loops(schedule.get_sblock("C"))
    drawn = schedule.sample_categorical([2, 4, 8], [0.25, 0.25, 0.5], decision=1)
    schedule.split(i, [None, int(schedule.get(drawn))])


@design_space("product")
def counts_loops(schedule):
    block = schedule.get_sblock("C")
    i, j, k = schedule.get_loops(block)
    i0, i1 = schedule.split(i, schedule.sample_perfect_tile(i, 2, 16, decision=[4, 4]))
    j0, j1 = schedule.split(j, schedule.sample_perfect_tile(j, 2, 16, decision=[4, 8]))
    schedule.reorder(i0, j0, k, i1, j1)
    result = schedule.cache_write(block, 0, "local")
    schedule.reverse_compute_at(result, j0)  # a tile of one row has one loop less
    schedule.vectorize(schedule.get_loops(result)[-1])


@pytest.mark.exhaustive
@pytest.mark.parametrize("space", [decided_in_python, counts_loops], ids=lambda space: space.name)
def test_a_space_that_cannot_be_searched_says_why(space, tmp_path):
    def search():
        options = {"trials": 12, "logs": tmp_path, "use_shipped": False, "patience": 0}
        return tune_op(scaled_product(16, 8, 32), name="product", spaces=[space], **options)

    if space is counts_loops:
        with pytest.raises(UsageError, match="counts_loops fails with other decisions.*") as caught:
            search()
        assert "preserve_unit_loops=True" in str(caught.value)
    else:
        (warning,) = search().report.warnings
        assert warning.startswith("all candidates of user.decided_in_python are one program")


def test_what_is_wrong_is_told():
    with pytest.raises(UsageError, match="names of the kernels"):
        design_space()
    with pytest.raises(UsageError, match="names of the kernels"):
        design_space(lambda schedule: None)
    with pytest.raises(UsageError, match="whole number from 1"):
        design_space("k", version=0)
    with pytest.raises(UsageError, match="function of a schedule"):
        design_space("k")(lambda: None)
    with pytest.raises(UsageError, match="user.stumbles fails on the kernel product"):
        build_model(optimized(stumbles))
    with pytest.raises(UsageError, match=r"no kernel of another is of the names that user.tiled is for"):
        tune_op(scaled_product(4, 4, 4), name="another", spaces=[tiled], trials=0)
    with pytest.raises(UsageError, match="decorated with hetero_tvm.design_space"):
        tune_op(scaled_product(4, 4, 4), spaces=[lambda schedule: None], trials=0)


def test_traces_compute_the_same_as_the_plain_kernel():
    rng = np.random.default_rng()
    a, b = rng.standard_normal((16, 8)).astype("float32"), rng.standard_normal((8, 32)).astype("float32")
    for spaces in ([], [tiled], [undecided]):
        (found,) = build_model(optimized(*spaces)).run({"A": a, "B": b})
        np.testing.assert_allclose(found, 2 * (a @ b), rtol=1e-5, atol=1e-5)
