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
from hetero_tvm.records.appending import append_line
from hetero_tvm.records.record import VERIFIED, Record, Site, new_record
from hetero_tvm.records.store import RecordStore, read_records, shipped_logs, user_logs

MACHINE = CpuModel("znver4", features=("avx2", "fma"), lanes=8, threads=2)
SITE = Site.of(MACHINE)
TASK = SimpleNamespace(key="k1", name="matmul", op=None, space=SimpleNamespace(name="cpu.matmul", version=1))


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
        ("target", "../../elsewhere"),
        ("target", "/elsewhere"),
        ("target", ".."),
        ("target", "cpu\0"),
        ("mcpu", "x" * 300),
        ("task", "\x1b[2J"),
        ("task", "\ud800"),
        ("error", "\ud800"),
        ("trace", "\ud800"),
        ("point", {"\ud800": 1}),
    ],
)
def test_fields_of_a_wrong_type_make_no_record(field, value):
    fields = {**json.loads(record().to_json()), field: value}
    with pytest.raises(ValueError):
        Record.from_json(json.dumps(fields))


def test_fields_that_lack_are_named():
    fields = json.loads(record().to_json())
    del fields["key"], fields["space"]
    with pytest.raises(ValueError, match="^without key, space$"):
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
from hetero_tvm.records.appending import append_line
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


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[:40],
        lambda line: line.replace("0.001", "1" + "0" * 400),
        lambda line: line.replace("0.001", "1" + "0" * 6000),
        lambda line: line.replace("0.001", "NaN"),
        lambda line: line.replace("0.001", "true"),
        lambda line: json.dumps({**json.loads(line), "point": [1]}),
        lambda line: json.dumps({**json.loads(line), "created": 5}),
        lambda line: line[:-1] + ', "x": ' + "[" * 3000 + "]" * 3000 + "}",
        lambda line: json.dumps({**json.loads(line), "point": 0}).replace(
            '"point": 0', '"point": {"a": ' + "[" * 800 + "]" * 800 + "}"
        ),
        lambda line: "\0" * 50,
        lambda line: "[" * 100_000,
    ],
)
def test_a_damaged_line_is_skipped_and_told_once(tmp_path, damage):
    store = RecordStore(SITE, tmp_path)
    store.append(record(1e-3))
    store.append(record(2e-3))
    first, second = store.path.read_text().splitlines()
    store.path.write_text("\n".join([second, damage(first), second]) + "\n")
    with pytest.warns(UserWarning) as told:
        records = read_records(store.path)
    assert [r.seconds for r in records] == [2e-3, 2e-3]
    assert [str(warning.message).startswith(f"{store.path}:2: ") for warning in told] == [True]


def test_no_part_of_a_line_stays_on_a_full_disk(tmp_path):
    import resource

    path = tmp_path / "records.jsonl"
    append_line(path, "a" * 100)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, limits[1]))
    try:
        with pytest.raises(RecordError, match=str(path)):
            append_line(path, "b" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "a" * 100 + "\n"


def test_what_others_append_is_seen_once(tmp_path):
    ours, theirs = RecordStore(SITE, tmp_path), RecordStore(SITE, tmp_path)
    ours.append(record(3e-3))
    theirs.append(record(2e-3))
    theirs.append(replace(record(1e-9), mcpu="other"))
    ours.append(record(4e-3))  # the others' lines lie between our two
    assert [r.seconds for r in ours.refresh()] == [2e-3]
    assert ours.refresh() == [] and len(ours.trials(TASK)) == 3
    theirs.append(record(1e-3))
    assert [r.seconds for r in ours.refresh()] == [1e-3] and ours.best(TASK)[0].seconds == 1e-3
    assert [r.seconds for r in theirs.refresh()] == [3e-3, 4e-3]


@pytest.mark.filterwarnings("ignore:.*skipped a line")
@pytest.mark.parametrize("torn", [False, True])
def test_a_last_line_without_an_end_is_counted_once(tmp_path, torn):
    theirs = RecordStore(SITE, tmp_path)
    theirs.append(record(2e-3))
    text = record(1e-3).to_json()
    with theirs.path.open("a") as file:
        file.write(text[:50] if torn else text)
    ours = RecordStore(SITE, tmp_path)
    assert len(ours.trials(TASK)) == (1 if torn else 2)
    if torn:  # another process was in the middle of it
        with theirs.path.open("a") as file:
            file.write(text[50:])
        assert ours.refresh() == []
    theirs.append(record(3e-3))
    assert [r.seconds for r in ours.refresh()] == ([1e-3, 3e-3] if torn else [3e-3])
    ours.path.unlink()  # taken away: what was read stays
    assert ours.refresh() == [] and len(ours.trials(TASK)) == 3
    ours.append(record(4e-3))
    assert len(ours.trials(TASK)) == 4 and len(read_records(ours.path)) == 1


def test_the_last_verified_record_counts_when_the_clock_goes_backwards(tmp_path):
    store = RecordStore(SITE, tmp_path)
    store.append(replace(record(2e-3, role=VERIFIED), created="2030-01-01T00:00:00.000+00:00"))
    store.append(replace(record(1e-3, role=VERIFIED), created="2020-01-01T00:00:00.000+00:00"))
    for one in (store, RecordStore(SITE, tmp_path)):
        assert one.best(TASK)[0].seconds == one.verified(TASK).seconds == 1e-3


def test_a_place_that_cannot_be_written_is_told_before(tmp_path, monkeypatch):
    store = RecordStore(SITE, tmp_path / "a" / "b")
    store.check_writable()
    store.append(record())
    store.check_writable()
    store.path = tmp_path / "a" / "b"  # a folder
    with pytest.raises(RecordError, match="--logs"):
        store.check_writable()
    with pytest.raises(RecordError, match="/proc cannot be written to"):  # though its superuser may write
        RecordStore(SITE, Path("/proc/none")).check_writable()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    for folder in ("a/b", "c"):
        with pytest.raises(RecordError, match="cannot be written"):
            RecordStore(SITE, tmp_path / folder).check_writable()
