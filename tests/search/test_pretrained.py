"""Cost models trained from tables: what they know, when they apply, what of them is on disk."""

import dataclasses
import gzip

import numpy as np
import pytest

from hetero_tvm.errors import RecordError
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.records.record import Site, new_record
from hetero_tvm.records.store import RecordStore, shipped_logs
from hetero_tvm.records.tables import SUFFIX, Table, read_tables, shipped_tables, write_tables
from hetero_tvm.schedules.cpu.products.matmul import MatmulSpace
from hetero_tvm.schedules.task import Task, task_key
from hetero_tvm.search import pretrained
from hetero_tvm.search.cost_model import SpaceModel, described
from hetero_tvm.targets.cpu.spaces import CPU_SPACES

SPACE = MatmulSpace()
MACHINE = CpuModel("test", lanes=8, registers=16, threads=2)


def truth(op, point):
    """Prefetching is slow and long unrolling fast here, neither of which the estimate knows."""
    estimate = SPACE.estimate(op, point, MACHINE)
    return 1e-9 * estimate * (1 + point["prefetch"]) * (1 + 1 / point["unroll"])


def table(m, n, k, machine=MACHINE):
    op = Matmul((m,), n, k)
    tiles, blocks, unrolls, prefetches, cuts = SPACE.knobs(op, machine)
    points = [
        {"tile": tile, "row_blocks": blocks.choices[0], "unroll": u, "prefetch": p, "k_blocks": 1}
        for tile in tiles.choices[:4]
        for u in unrolls.choices
        for p in prefetches.choices
    ]
    return Table.of(SPACE.name, SPACE.version, op, machine, points, [truth(op, p) for p in points])


TABLES = [table(64, 64, 64), table(32, 128, 64), table(128, 64, 256)]


def test_tables_survive_the_disk(tmp_path):
    path = tmp_path / f"cpu-test{SUFFIX}"
    write_tables(path, TABLES)
    assert read_tables(path) == shipped_tables(tmp_path, "cpu") == TABLES
    before = path.read_bytes()
    write_tables(path, read_tables(path))
    assert path.read_bytes() == before
    found = read_tables(path)[0]
    assert found.operator() == Matmul((64,), 64, 64) and found.described_machine() == MACHINE
    assert found.each_point()[0]["tile"] == TABLES[0].each_point()[0]["tile"]


@pytest.mark.parametrize("text", ["[]", "{}", "no json", '{"space": "x"}'])
def test_a_file_of_something_else_is_told(tmp_path, text):
    path = tmp_path / f"cpu-test{SUFFIX}"
    path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(RecordError, match="cannot be read"):
        read_tables(path)
    path.write_bytes(b"not compressed")
    with pytest.raises(RecordError, match="cannot be read"):
        read_tables(path)


def test_a_model_knows_an_unseen_shape_better_than_the_estimate(tmp_path):
    models = pretrained.train(TABLES, [SPACE])
    path = pretrained.models_file(tmp_path, "cpu")
    pretrained.write_models(path, models)
    base = pretrained.base_of(SPACE, MACHINE, pretrained.models_of([tmp_path / "absent", tmp_path], "cpu"))
    op = Matmul((96,), 64, 128)
    points = [
        {"tile": (2, 2), "row_blocks": 1, "unroll": u, "prefetch": p, "k_blocks": 1}
        for u in (1, 8)
        for p in (0, 1)
    ]
    found = [described(SPACE, op, point, MACHINE) for point in points]
    assert len(set(SpaceModel().score(found))) == 1
    order = np.argsort(-SpaceModel(base=base).score(found))
    assert [points[i] for i in order] == sorted(points, key=lambda point: truth(op, point))


def test_models_serve_machines_with_vectors_as_wide():
    models = pretrained.train(TABLES, [SPACE])
    assert pretrained.base_of(SPACE, CpuModel("other", lanes=8, threads=16), models) is not None
    assert pretrained.base_of(SPACE, CpuModel("wide", lanes=16, registers=32), models) is None

    class Newer(MatmulSpace):
        version = SPACE.version + 1

    assert pretrained.base_of(Newer(), MACHINE, models) is None
    assert pretrained.train(TABLES, [Newer()]) == {}


def test_trees_for_other_features_are_left_alone():
    base = pretrained.base_of(SPACE, MACHINE, pretrained.train(TABLES, [SPACE]))

    class Longer(MatmulSpace):
        def features(self, op, point, machine):
            return [*super().features(op, point, machine), 1.0]

    op = Matmul((64,), 64, 64)
    point = SPACE.default(op, MACHINE)
    score = SpaceModel(base=base).score([described(Longer(), op, point, MACHINE)])
    assert score == SpaceModel().score([described(SPACE, op, point, MACHINE)])


def test_the_trials_of_a_user_are_tables_too(tmp_path):
    op = Matmul((64,), 64, 64)
    workload = op.workload()
    task = Task(task_key(workload), op.label, op, workload, SPACE, (), op.flops, op.nbytes)
    site = Site.of(MACHINE)
    store = RecordStore(site, tmp_path)
    for point in TABLES[0].each_point():
        store.append(new_record(task, site, {"point": point}, seconds=truth(op, point)))
    records = store.trials(task)
    (found,) = pretrained.tables_of(records, [SPACE], MACHINE, "cpu")
    key = lambda pair: sorted(pair[0].items())  # noqa: E731
    assert sorted(zip(found.each_point(), found.seconds, strict=True), key=key) == sorted(
        zip(TABLES[0].each_point(), TABLES[0].seconds, strict=True), key=key
    )
    elsewhere = CpuModel("elsewhere", lanes=8)
    assert pretrained.tables_of(records, [SPACE], elsewhere, "cpu") == []
    odd = [{"op": '{"kind": "of tomorrow"}'}, {"op": "x"}, {"point": {**records[0].point, "later": {"a": 1}}}]
    edited = [*records, *(dataclasses.replace(records[0], **fields) for fields in odd)]
    with pytest.warns(UserWarning, match="3 records are of operators or points"):
        assert pretrained.tables_of(edited, [SPACE], MACHINE, "cpu") == [found]


@pytest.mark.thorough
def test_what_is_shipped_is_what_the_shipped_tables_teach():
    """After a change of tables, features or estimates:
    ``python -m hetero_tvm.db train --only-tables --out logs``."""
    tables = shipped_tables(shipped_logs(), "cpu")
    shipped = pretrained.models_of([shipped_logs()], "cpu")
    taught = pretrained.train(tables, CPU_SPACES)
    assert shipped.keys() == taught.keys()
    for name, model in taught.items():
        space = next(space for space in CPU_SPACES if space.name == name)
        table = next(table for table in tables if table.space == name)
        points = [description for description, _ in pretrained.rows_of(table, space)]
        wanted = SpaceModel(base=model.booster()).score(points)
        assert np.allclose(SpaceModel(base=shipped[name].booster()).score(points), wanted, atol=1e-4), name


def test_models_on_a_full_disk_stay_as_they_were(tmp_path, at_most):
    path = pretrained.models_file(tmp_path, "cpu")
    models = pretrained.train(TABLES, [SPACE])
    pretrained.write_models(path, models)
    before = path.read_bytes()
    with at_most(100), pytest.raises(RecordError, match=f"{path}: "):
        pretrained.write_models(path, models)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
