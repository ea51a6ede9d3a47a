import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hetero_tvm.errors import RecordError
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.records.store import (
    VERIFIED,
    Record,
    RecordStore,
    Site,
    append_line,
    new_record,
    read_records,
    shipped_logs,
    user_logs,
)

MACHINE = CpuModel("znver4", features=("avx2", "fma"), lanes=8, threads=2)
SITE = Site.of(MACHINE)
TASK = SimpleNamespace(key="k1", name="matmul", space=SimpleNamespace(name="cpu.matmul", version=1))


def record(seconds=1e-3, **fields):
    point = fields.pop("point", {"tile": (8, 2), "seconds": seconds})
    return new_record(TASK, SITE, {"point": point}, seconds=seconds, **fields)


def test_what_is_written_is_read_back(tmp_path):
    store = RecordStore(SITE, tmp_path)
    store.append(record(2e-3))
    store.append(record(None, status="crash", error="killed by SIGSEGV"))
    store.append(record(1e-3))
    again = RecordStore(SITE, tmp_path)
    assert [r.status for r in again.trials(TASK)] == ["ok", "crash", "ok"]
    best, layer = again.best(TASK)
    assert (best.seconds, layer) == (1e-3, "user")
    assert best.created and "apache-tvm" in best.tools


@pytest.mark.parametrize(
    "field, value", [("mcpu", "znver3"), ("isa", "other"), ("threads", 4), ("target", "cuda")]
)
def test_a_record_of_another_place_never_matches(tmp_path, field, value):
    store = RecordStore(SITE, tmp_path)
    foreign = replace(record(1e-9), **{field: value})
    append_line(store.path, foreign.to_json())
    store.append(record(1e-3))
    again = RecordStore(SITE, tmp_path)
    assert again.best(TASK)[0].seconds == 1e-3
    assert len(again.measured(TASK)) == 1


def test_features_lanes_and_threads_make_the_site():
    assert Site.of(MACHINE) == Site.of(replace(MACHINE, features=("fma", "avx2")))
    assert Site.of(MACHINE) != Site.of(replace(MACHINE, features=("avx2",)))
    assert Site.of(MACHINE) != Site.of(replace(MACHINE, threads=1))
    assert Site.of(MACHINE) != Site.of(replace(MACHINE, lanes=16))
    assert Site.of(MACHINE) != Site.of(replace(MACHINE, variant="small"))


def test_another_version_of_the_space_does_not_match(tmp_path):
    store = RecordStore(SITE, tmp_path)
    store.append(replace(record(), version=2))
    store.append(replace(record(), space="cpu.other"))
    store.append(replace(record(), key="k2"))
    assert store.best(TASK) is None


def test_torn_last_line_is_reported_skipped_and_repaired(tmp_path):
    store = RecordStore(SITE, tmp_path)
    store.append(record(2e-3))
    with open(store.path, "ab") as file:
        file.write(record(1e-3).to_json().encode()[:40])
    with pytest.warns(UserWarning, match=r"jsonl:2: skipped"):
        torn = RecordStore(SITE, tmp_path)
    assert torn.best(TASK)[0].seconds == 2e-3
    torn.append(record(1.5e-3))
    with pytest.warns(UserWarning, match=r"jsonl:2"):
        assert RecordStore(SITE, tmp_path).best(TASK)[0].seconds == 1.5e-3


@pytest.mark.filterwarnings("error")
def test_one_warning_for_many_corrupt_lines(tmp_path):
    path = tmp_path / "x.jsonl"
    lines = ["nonsense", "[1]", "{}", record().to_json(), '{"status": "ok"}', "\xff", '{"key": "\ud800"}']
    path.write_bytes("\n".join(lines).encode("latin-1", "ignore"))
    with pytest.warns(UserWarning, match=r"x.jsonl:1: .*and \d more") as caught:
        assert len(read_records(path)) == 1
    assert len(caught) == 1


@pytest.mark.parametrize(
    "field, value",
    [
        ("point", [1, 2]),
        ("point", "fast"),
        ("trace", {"a": 1}),
        ("created", 20260101),
        ("version", "1"),
        ("threads", None),
        ("seconds", "1e-3"),
        ("seconds", float("nan")),
        ("seconds", -1.0),
        ("default_seconds", float("inf")),
        ("key", None),
    ],
)
def test_fields_of_a_wrong_type_make_no_record(field, value):
    fields = {**json.loads(record().to_json()), field: value}
    with pytest.raises(ValueError):
        Record.from_json(json.dumps(fields))


def test_deep_json_makes_no_record():
    with pytest.raises(ValueError, match="nested too deep"):
        Record.from_json("[" * 200_000)


def test_fields_of_later_versions_are_ignored(tmp_path):
    fields = json.loads(record().to_json())
    assert Record.from_json(json.dumps({**fields, "invented_later": 1})).ok


def test_unreadable_file_is_an_error(tmp_path):
    (tmp_path / "cpu-znver4.jsonl").mkdir()
    with pytest.raises(RecordError, match="cannot be read"):
        RecordStore(SITE, tmp_path)


def test_unwritable_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    store = RecordStore(SITE, tmp_path)
    store.path = tmp_path / "file" / "cpu.jsonl"
    with pytest.raises(RecordError, match="--logs"):
        store.append(record())


WRITER = """
import sys
from pathlib import Path
from hetero_tvm.records.store import append_line
for i in range(200):
    append_line(Path(sys.argv[1]), '{"who": "%s", "i": %d, "pad": "%s"}' % (sys.argv[2], i, "x" * 3000))
"""


def test_several_processes_append_at_once(tmp_path):
    path = tmp_path / "shared.jsonl"
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], env=environment) for name in "abc"
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for name in "abc":
        assert [line["i"] for line in lines if line["who"] == name] == list(range(200))


def test_layers(tmp_path):
    shipped = RecordStore(SITE, tmp_path / "shipped")
    shipped.append(record(1e-3, point={"a": 1}))
    store = RecordStore(SITE, tmp_path / "user", shipped=tmp_path / "shipped")
    assert store.best(TASK) == (store.measured(TASK)['{"a": 1}'], "shipped")
    store.append(record(5e-3, point={"a": 2}))
    assert store.best(TASK)[1] == "user"
    assert set(store.measured(TASK)) == {'{"a": 1}', '{"a": 2}'}
    assert len(store.trials(TASK)) == 1  # shipped trials are not of this user's budget
    # A verified shipped record beats the user's unverified trials, a verified one of the user beats it.
    shipped.append(record(2e-3, point={"a": 1}, role=VERIFIED))
    store = RecordStore(SITE, tmp_path / "user", shipped=tmp_path / "shipped")
    assert store.best(TASK)[1] == "shipped"
    store.append(record(4e-3, point={"a": 2}, role=VERIFIED))
    assert store.best(TASK)[0].seconds == 4e-3
    assert not (tmp_path / "shipped" / "cpu-znver4.jsonl").read_text().count('"a": 2')


def test_verified_until_the_next_trial(tmp_path):
    store = RecordStore(SITE, tmp_path)
    store.append(record(2e-3))
    assert store.verified(TASK) is None
    store.append(record(2e-3, role=VERIFIED))
    assert store.verified(TASK) is not None
    store.append(record(1e-3))
    assert store.verified(TASK) is None
    assert store.best(TASK)[0].role == VERIFIED  # the noisy faster trial does not win by itself


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HETERO_TVM_LOGS", str(tmp_path / "mine"))
    assert user_logs() == tmp_path / "mine"
    monkeypatch.delenv("HETERO_TVM_LOGS")
    assert "hetero_tvm" in str(user_logs())
    assert shipped_logs() is None or shipped_logs().is_dir()
