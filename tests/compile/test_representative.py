"""One point for all lengths, from records of some."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.compile.representative import AtLengths, chosen_for_lengths
from hetero_tvm.errors import UsageError
from hetero_tvm.frontend import Span
from hetero_tvm.records.choose import choose
from hetero_tvm.records.record import VERIFIED, new_record
from hetero_tvm.records.store import RecordFolders

LENGTHS = {4: 0.25, 12: 0.75}


@pytest.fixture(scope="module")
def proto():
    """Two products of 24 columns, with rows in a range."""
    random = np.random.default_rng(0)
    weights = [random.standard_normal(shape).astype(np.float32) for shape in ((16, 24), (24, 24))]
    nodes = [helper.make_node("MatMul", ["x", "w0"], ["a"]), helper.make_node("Relu", ["a"], ["h"])]
    nodes.append(helper.make_node("MatMul", ["h", "w1"], ["y"]))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width])
        for name, width in (("x", 16), ("y", 24))
    ]
    constants = [numpy_helper.from_array(w, f"w{n}") for n, w in enumerate(weights)]
    graph = helper.make_graph(nodes, "rows", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def model(proto):
    return import_model(proto, shapes={"x": (Span(2, 32), 16)})


@pytest.fixture(scope="module")
def optimized(model):
    return optimize_model(model, lengths=LENGTHS)


def recorded(optimized, folder, times):
    """Records of the first product: ``times[length][n]`` seconds of its n-th tile there."""
    folders = RecordFolders(folder, use_shipped=False)
    store = optimized.store(folders)
    for one in optimized.lengths.representative:
        (length,) = one.sizes.values()
        task, tiles = one.model.tasks[0], tiles_of(optimized)
        default = task.space.default(optimized.tasks[0].op, optimized.machine)
        for n, seconds in enumerate(times.get(length, ())):
            point = {**default, "tile": tiles[n]}
            store.append(new_record(task, store.site, {"point": point}, seconds=seconds, status="ok"))
    return optimized.store(folders)


def tiles_of(optimized):
    """Tiles that the first product has at all lengths."""
    every = [one.model.tasks[0] for one in optimized.lengths.representative] + [optimized.tasks[0]]
    known = [
        {knob.name: knob.choices for knob in task.space.knobs(task.op, optimized.machine)}["tile"]
        for task in every
    ]
    return [tile for tile in known[0] if all(tile in choices for choices in known)]


def chosen(optimized, store):
    choices = choose(optimized.tasks, optimized.machine, store)
    return chosen_for_lengths(optimized, choices, store)[optimized.tasks[0].key]


def test_tasks_of_all_lengths_with_their_weights(optimized):
    tasks = AtLengths.of(optimized, optimized.lengths.representative).tasks
    assert len(tasks) == 4 and len({task.name for task in tasks}) == 4
    assert [round(task.uses, 6) for task in tasks] == [0.25, 0.25, 0.75, 0.75]


def test_the_least_weighted_time_wins(optimized, tmp_path):
    tiles = tiles_of(optimized)
    times = {4: [1e-6, 2e-6], 12: [4e-6, 3e-6]}
    found = chosen(optimized, recorded(optimized, tmp_path, times))
    assert found.point["tile"] == tiles[1]  # 0.25 * 2 + 0.75 * 3 < 0.25 * 1 + 0.75 * 4
    assert found.origin == "records at rows=4, rows=12"
    times = {4: [1e-6, 9e-6], 12: [4e-6, 3e-6]}
    assert chosen(optimized, recorded(optimized, tmp_path / "b", times)).point["tile"] == tiles[0]


def test_without_lengths_those_that_records_are_of_count(model, optimized, tmp_path):
    plain = optimize_model(model)
    store = recorded(optimized, tmp_path, {12: [4e-6, 3e-6]})
    found = chosen(plain, store)
    assert found.point["tile"] == tiles_of(optimized)[1] and found.origin == "records at rows=12"
    nothing = plain.store(RecordFolders(tmp_path / "none", use_shipped=False))
    assert chosen(plain, nothing).origin == "default"


def test_records_of_lengths_out_of_range_do_not_count(proto, model, tmp_path):
    wider = import_model(proto, shapes={"x": (Span(2, 64), 16)})
    long = optimize_model(wider, lengths={48: 1.0})
    store = recorded(long, tmp_path, {48: [4e-6, 3e-6]})
    assert chosen(optimize_model(model), store).origin == "default"


def test_a_verified_winner_beats_a_faster_trial(optimized, tmp_path):
    store = recorded(optimized, tmp_path, {12: [4e-6, 3e-6]})
    task = optimized.lengths.representative[1].model.tasks[0]
    default = task.space.default(optimized.tasks[0].op, optimized.machine)
    point = {**default, "tile": tiles_of(optimized)[0]}
    store.append(new_record(task, store.site, {"point": point}, seconds=2e-6, status="ok", role=VERIFIED))
    assert chosen(optimized, store).point["tile"] == tiles_of(optimized)[0]


def test_forgotten_records_do_not_count(optimized, tmp_path):
    store = recorded(optimized, tmp_path, {12: [4e-6, 3e-6]})
    store.forget(optimized.lengths.representative[1].model.tasks[0])
    assert chosen(optimized, store).origin == "default"


@pytest.mark.thorough
def test_the_library_is_right_at_all_lengths(optimized, tmp_path):
    recorded(optimized, tmp_path, {4: [1e-6, 2e-6], 12: [4e-6, 3e-6]})
    built = build_model(optimized, logs=tmp_path, use_shipped=False)
    assert built.check().ok
    assert "records at rows=4, rows=12" in {row["record"] for row in built.kernels}


def test_a_model_of_fixed_sizes_has_no_lengths(model):
    with pytest.raises(UsageError, match="no open dimension"):
        optimize_model(model.open.at({"rows": 4}), lengths=LENGTHS)
    with pytest.raises(UsageError) as told:
        optimize_model(model, lengths={64: 1.0})
    assert "rows = 64 is outside of rows = 2..32" in told.value.problems
