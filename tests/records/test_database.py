"""Records as a database: filters, merging, pruning, while others append."""

import json
import multiprocessing
import os

import pytest

from hetero_tvm.errors import RecordError, UsageError
from hetero_tvm.records import database
from hetero_tvm.records.appending import append_line
from hetero_tvm.records.database import Filter
from hetero_tvm.records.record import DISTURBED, FRESH, TRIAL, VERIFIED, Record
from hetero_tvm.records.store import read_records


def record(task="matmul_128x768x3072_bias", seconds=1e-3, **fields):
    fields = {"point": {"unroll": 4}, "space": "cpu.matmul", "role": TRIAL, "created": "2026-01-01", **fields}
    machine = {"target": "cpu", "mcpu": "znver4", "isa": "i", "threads": 2}
    return Record(f"key of {task}", task, version=1, seconds=seconds, **{**machine, **fields})


def write(folder, *records):
    for one in records:
        append_line(folder / database.file_name(one), one.to_json())


def tasks(records):
    return [one.task for one in records]


def test_filters(tmp_path):
    write(
        tmp_path,
        record(),
        record("matmul_1128x768"),
        record("softmax_8x8", space="cpu.softmax", mcpu="znver5"),
        record("conv2d_3x8x8", target="cuda", mcpu="sm_90", device="NVIDIA H100", role=VERIFIED),
    )
    names = lambda **wanted: tasks(database.select(tmp_path, Filter(**wanted)))  # noqa: E731
    assert len(names()) == 4
    assert names(op="soft") == names(op="cpu.softmax") == ["softmax_8x8"]
    assert names(shape="128x768") == ["matmul_128x768x3072_bias"]
    assert names(op="matmul*3072*") == ["matmul_128x768x3072_bias"]
    assert names(target="cuda") == names(machine="NVIDIA") == names(role="verified") == ["conv2d_3x8x8"]
    assert names(machine="znver5") == ["softmax_8x8"]
    assert names(op="Matmul") == names(shape="8x7") == []
    assert database.select(tmp_path / "absent", Filter()) == []


def test_the_best_is_what_a_build_takes():
    slow, fast = record(seconds=2e-3), record(seconds=1e-3, point={"unroll": 1})
    verified = record(seconds=1.5e-3, role=VERIFIED, created="2026-01-02")
    older = record(seconds=9e-4, role=VERIFIED, created="2026-01-01")
    assert database.best_of([slow, fast]) is fast
    assert database.best_of([slow, fast, older, verified]) is verified
    assert database.best_of([record(seconds=None, status="crash")]) is None


def test_merging_twice_adds_nothing(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    write(here, record())
    write(there, record(), record("softmax_8x8"), record("softmax_8x8", mcpu="znver5"))
    assert sum(database.merge(here, [there]).values()) == 2
    assert sum(database.merge(here, [there]).values()) == 0
    assert sorted(p.name for p in database.files_of(here)) == ["cpu-znver4.jsonl", "cpu-znver5.jsonl"]
    one = there / "cpu-znver4.jsonl"
    assert database.merge(tmp_path / "fresh", [one]) == {str(one): 2}
    with pytest.raises(UsageError, match="no such file"):
        database.merge(here, [tmp_path / "absent"])


def test_merging_writes_nothing_beside_the_folder(tmp_path):
    write(tmp_path / "theirs", record())
    theirs = tmp_path / "theirs" / "cpu-znver4.jsonl"
    for target in ("../outside", str(tmp_path / "outside")):
        append_line(theirs, record(target=target).to_json())
    with pytest.warns(UserWarning, match="no name that a file can have"):
        assert database.merge(tmp_path / "in" / "mine", [theirs]) == {str(theirs): 1}
    assert sorted(p.name for p in tmp_path.rglob("*.jsonl")) == ["cpu-znver4.jsonl"] * 2


def test_pruning_keeps_what_counts(tmp_path):
    void = record(seconds=5e-3, point={"unroll": 8})
    write(
        tmp_path, void, record(seconds=None, status=DISTURBED, point={"unroll": 8}), record(), record("a_1")
    )
    write(tmp_path, record("b_1", seconds=None, status="crash"))
    assert database.prune(tmp_path, database.without_void, Filter()) == (5, 3)
    assert tasks(database.select(tmp_path, Filter())) == ["matmul_128x768x3072_bias", "a_1", "b_1"]
    assert database.prune(tmp_path, database.winners_only, Filter(op="b_1")) == (3, 2)
    assert database.prune(tmp_path, database.winners_only, Filter()) == (2, 2)


def test_a_task_that_was_told_to_be_forgotten_stays_so(tmp_path):
    marker = record(seconds=None, status="unmeasured", role=FRESH, point={})
    write(tmp_path, record(seconds=9.0), marker, record())
    database.prune(tmp_path, database.without_void, Filter())
    assert [r.role for r in database.select(tmp_path, Filter())] == [FRESH, TRIAL]


def _appends(path, count):
    for number in range(count):
        append_line(path, record(f"task_{os.getpid()}_{number}").to_json())


def test_nothing_is_lost_while_searches_append(tmp_path):
    path = tmp_path / "cpu-znver4.jsonl"
    write(tmp_path, record("first_1"))
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_appends, args=(path, 60)) for _ in range(3)]
    for writer in writers:
        writer.start()
    source = tmp_path / "more"
    write(source, *(record(f"merged_{n}") for n in range(20)))
    while any(writer.is_alive() for writer in writers):
        database.prune(tmp_path, database.without_void, Filter(op="nothing_that_is_there"))
        write(tmp_path, record("void_1", seconds=None, status=DISTURBED))
        database.prune(tmp_path, database.without_void, Filter(op="void_1"))
        database.merge(tmp_path, [source])
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    found = tasks(read_records(path))
    assert len(found) == len(set(found)) == 1 + 3 * 60 + 20


def test_what_is_wrong_is_told(tmp_path):
    write(tmp_path, record(), record(seconds=0.1, role=VERIFIED))
    path = tmp_path / "cpu-znver4.jsonl"
    with open(path, "a") as file:
        file.write("{no json\n" + record(mcpu="znver5").to_json() + "\n" + json.dumps({"key": 1})[:-1])
    found = "\n".join(database.problems(tmp_path))
    assert "the last line is torn" in found and ":3: not a record" in found
    assert ":4: matmul_128x768x3072_bias is of cpu:znver5" in found
    assert "was verified at 100 ms, its trial took 1 ms" in found


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot be written"):
        database.add(tmp_path / "file" / "logs", [record()])


def test_a_full_disk_leaves_no_file_that_was_not_there(tmp_path, at_most):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    write(source, record(), record("softmax_8x8"))
    with at_most(100), pytest.raises(RecordError, match=f"{target}.*: .*"):
        database.merge(target, [source])
    assert list(target.iterdir()) == []
    assert sum(database.merge(target, [source]).values()) == 2
