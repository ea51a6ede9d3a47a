"""Records through MetaSchedule's JSONDatabase and back."""

import dataclasses
import json
import resource

import pytest

from hetero_tvm.errors import RecordError
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.records.record import Site, new_record
from hetero_tvm.schedules.cpu.products.matmul import MatmulSpace
from hetero_tvm.schedules.task import Task, task_key
from hetero_tvm.search import exchange
from tests.search.spaces import MACHINE

SPACE, SITE = MatmulSpace(), Site.of(MACHINE)
SPACES = {SPACE.name: SPACE}


def records(m=16):
    op = Matmul((m,), 64, 64, ("bias",))
    workload = op.workload()
    task = Task(task_key(workload), op.label, op, workload, SPACE, (), op.flops, op.nbytes)
    default = dict(SPACE.default(op, MACHINE))
    points = [default, {**default, "unroll": 1}, {**default, "prefetch": 0}]
    return [new_record(task, SITE, {"point": p}, seconds=1e-3 * (n + 1)) for n, p in enumerate(points)]


def test_there_and_back(tmp_path):
    sent = [*records(), *records(m=8)]
    assert exchange.export(tmp_path, sent, SPACES, MACHINE) == (6, {})
    back = exchange.read(tmp_path, SPACES, SITE)
    of = lambda r: (r.key, r.task, r.space, r.version, r.candidate, r.seconds, r.op)  # noqa: E731
    assert sorted(map(of, back)) == sorted(map(of, sent))


def test_metaschedule_reads_it(tmp_path):
    from hetero_tvm.search.metaschedule import load_metaschedule

    exchange.export(tmp_path, records(), SPACES, MACHINE)
    database = load_metaschedule().database.JSONDatabase(work_dir=str(tmp_path))
    assert len(database) == 3
    workload = database.get_all_tuning_records()[0].workload
    (best,) = database.get_top_k(workload, 1)
    assert float(best.run_secs[0]) == 1e-3
    kinds = [instruction.kind.name for instruction in best.trace.insts]
    assert kinds.count("SampleCategorical") == len(SPACE.knobs(Matmul((16,), 64, 64, ("bias",)), MACHINE))


def test_what_cannot_go_is_told(tmp_path):
    good, other, third = records()
    sent = [
        good,
        dataclasses.replace(other, seconds=None, status="crash"),
        dataclasses.replace(other, op=""),
        dataclasses.replace(third, space="cpu.unknown"),
        dataclasses.replace(third, point={**third.point, "unroll": 77}),
        dataclasses.replace(third, op='{"kind": "of tomorrow"}'),
        dataclasses.replace(third, space="stock", point=None, trace="[[], []]"),
        dataclasses.replace(
            third, space="stock", point=None, trace='[[["GetSBlock", [], ["a"], ["b"]]], []]'
        ),
    ]
    count, left_out = exchange.export(tmp_path, sent, SPACES, MACHINE)
    assert count == 2 and sum(left_out.values()) == 6
    assert {"no time", "no design space cpu.unknown here"} < left_out.keys()


def test_traces_of_others_become_trials_of_the_stock_rules(tmp_path):
    from hetero_tvm.host.tvm import tvm
    from hetero_tvm.search.metaschedule import load_metaschedule

    ms = load_metaschedule()
    function = Matmul((16,), 64, 64).workload().without_attr("hetero.op")
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    database = ms.database.JSONDatabase(work_dir=str(tmp_path), allow_missing=True)
    schedule = tvm.s_tir.Schedule(module)
    arguments = ms.arg_info.ArgInfo.from_entry_func(module, remove_preproc=False)
    target = tvm.target.Target(MACHINE.codegen_target())
    record = ms.database.TuningRecord(
        schedule.trace, database.commit_workload(module), [2e-3, 1e-3], target, arguments
    )
    database.commit_tuning_record(record)
    (found,) = exchange.read(tmp_path, SPACES, SITE)
    assert found.space == "stock" and found.seconds == 1e-3 and json.loads(found.trace) is not None
    assert found.key == task_key(function) and found.site == SITE


def test_a_folder_without_a_database(tmp_path):
    with pytest.raises(RecordError, match="holds no database of MetaSchedule"):
        exchange.read(tmp_path, SPACES, SITE)
    for name in ("database_workload.json", "database_tuning_record.json"):
        (tmp_path / name).write_text("{rubbish\n")
    with pytest.raises(RecordError, match="cannot be read"):
        exchange.read(tmp_path, SPACES, SITE)


def test_a_database_that_does_not_fit_is_told_and_leaves_what_was_there(tmp_path):
    exchange.export(tmp_path, records(), SPACES, MACHINE)
    assert exchange.export(tmp_path, records(), SPACES, MACHINE) == (3, {})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for folder in (tmp_path, tmp_path / "new"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(map(len, before.values())) + 100, hard))
        try:
            with pytest.raises(RecordError, match="could not be written whole"):
                exchange.export(folder, [*records(m=8), *records(m=24)], SPACES, MACHINE)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert not list((tmp_path / "new").iterdir())
