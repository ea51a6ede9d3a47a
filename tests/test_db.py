"""The command of the database: what it prints, and that it refuses what cannot be."""

import json

import pytest

from hetero_tvm import db
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.records.appending import append_line
from hetero_tvm.records.record import VERIFIED, Site, new_record
from hetero_tvm.records.store import RecordStore
from hetero_tvm.schedules.cpu.products.matmul import MatmulSpace
from hetero_tvm.schedules.task import Task, task_key
from hetero_tvm.targets.registry import parse_target


@pytest.fixture
def logs(tmp_path):
    """Two trials and a winner of one kernel on this machine."""
    target = parse_target("cpu")
    op, space = Matmul((4,), 64, 64), MatmulSpace()
    workload = op.workload()
    task = Task(task_key(workload), op.label, op, workload, space, (), op.flops, op.nbytes)
    site = Site.of(target.machine)
    store = RecordStore(site, tmp_path / "logs")
    default = dict(space.default(op, target.machine))
    store.append(new_record(task, site, {"point": default}, seconds=2e-3))
    store.append(new_record(task, site, {"point": {**default, "unroll": 1}}, seconds=1e-3, spread=0.05))
    winner = {"seconds": 1e-3, "role": VERIFIED, "default_seconds": 2e-3}
    store.append(new_record(task, site, {"point": {**default, "unroll": 1}}, **winner))
    return tmp_path / "logs"


def run(capsys, *arguments):
    status = db.main([str(argument) for argument in arguments])
    return status, capsys.readouterr()


def test_looking(logs, capsys):
    status, said = run(capsys, "list", "--logs", logs, "--op", "matmul", "--shape", "64x64")
    assert status == 0 and said.out.count("matmul_4x64x64") == 3 and "3 records in" in said.out
    status, said = run(capsys, "list", "--logs", logs, "--target", "cuda")
    assert status == 0 and said.out.startswith("0 records")
    _, said = run(capsys, "best", "--logs", logs)
    assert said.out.count("matmul_4x64x64") == 1 and "verified  1 ms (2.00 x default)" in said.out
    _, said = run(capsys, "show", "matmul_4x64x64", "--logs", logs)
    assert "+5%" in said.out and '"unroll": 1' in said.out
    _, said = run(capsys, "stats", "--logs", logs, "--json")
    assert json.loads(said.out)["roles"] == {"trial": 2, "verified": 1}
    status, said = run(capsys, "show", "softmax", "--logs", logs)
    assert status == 2 and "no record of 'softmax'" in said.err


def test_a_terminal_gets_a_table_in_which_no_record_is_folded(logs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, said = run(capsys, "list", "--logs", logs)
    rows = [line for line in said.out.splitlines() if "matmul_4x64x64" in line]
    assert status == 0 and len(rows) == 3 and all(len(row) <= 80 for row in rows)
    assert sum("2.00 x" in row and "verified" in row for row in rows) == 1
    assert run(capsys, "list", "--logs", logs, "--quiet")[1].out == ""


def test_verify(logs, capsys):
    status, said = run(capsys, "verify", "--logs", logs)
    assert status == 0 and "3 records, 0 problems" in said.out
    (path,) = logs.glob("*.jsonl")
    line = json.loads(path.read_text().splitlines()[0])
    append_line(path, json.dumps({**line, "point": {**line["point"], "unroll": 77}}))
    append_line(path, json.dumps({**line, "version": 99}))
    append_line(path, "rubbish")
    status, said = run(capsys, "verify", "--logs", logs, "--json")
    found = "\n".join(json.loads(said.out)["problems"])
    assert (
        status == 1
        and "unroll=77" in found
        and "version 99 of the space" in found
        and "not a record" in found
    )


def test_exchange_with_metaschedule_and_other_folders(logs, capsys, tmp_path):
    status, said = run(capsys, "export", tmp_path / "ms", "--logs", logs, "--role", "trial")
    assert status == 0 and said.out.startswith("2 records of")
    status, said = run(capsys, "import", tmp_path / "ms", "--logs", tmp_path / "new", "--json")
    assert status == 0 and json.loads(said.out.partition("}")[0] + "}") == {"read": 2, "added": 2}
    status, said = run(capsys, "merge", logs, "--logs", tmp_path / "new")
    assert status == 0 and "3 new records" in said.out
    status, said = run(capsys, "prune", "--winners", "--logs", tmp_path / "new")
    assert status == 0 and "4 of 5 records removed" in said.out


def test_training(logs, capsys, tmp_path):
    status, said = run(capsys, "train", "--logs", logs, "--out", tmp_path / "models")
    assert status == 0 and "spaces from" in said.out
    assert (tmp_path / "models" / "cpu.models.json.gz").is_file()


def test_a_folder_that_is_not_there_is_refused_where_records_are_read(capsys, tmp_path):
    nowhere = tmp_path / "nowhere"
    for words in (["list"], ["best"], ["stats"], ["verify"], ["show", "matmul"], ["export", tmp_path / "ms"]):
        status, said = run(capsys, *words, "--logs", nowhere)
        assert status == 2 and f"--logs {nowhere}: there is no such folder" in said.err, words
    assert not nowhere.exists()


def test_what_cannot_be(logs, capsys, tmp_path):
    status, said = run(capsys, "prune", "--shipped")
    assert status == 2 and "shipped records are not written to" in said.err
    status, said = run(capsys, "import", tmp_path, "--logs", logs)
    assert status == 2 and "holds no database" in said.err
    for wrong in ([], ["nothing"], ["merge"], ["list", "--shap", "1"]):
        with pytest.raises(SystemExit) as error:
            db.main(wrong)
        assert error.value.code == 2
    capsys.readouterr()
