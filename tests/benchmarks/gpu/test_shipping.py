"""Measured records that become shipped ones: the best of each kernel, for each architecture that runs it."""

import dataclasses

from benchmarks.gpu import shipping
from hetero_tvm.machines.gpu import model_named
from hetero_tvm.records.appending import append_line
from hetero_tvm.records.record import TRIAL, VERIFIED
from hetero_tvm.records.store import RecordStore, read_records
from tests.benchmarks.gpu.recorded import GROUP, OP, SITE, SPACE, TILES, record


def test_the_best_of_each_kernel_is_shipped(tmp_path):
    logs, shipped = tmp_path / "logs", tmp_path / "shipped"
    store = RecordStore(SITE, logs)
    store.append(record(TILES[1], 2e-3))
    store.append(record(TILES[0], 3e-3))
    store.append(record(GROUP, 1e-3))
    store.append(record(None, None, status="timeout"))
    store.append(record(GROUP, 1e-3, VERIFIED, default_seconds=3e-3))
    store.append(record(TILES[2], 1e-4, version=SPACE.version - 1, key="0x2"))  # of a space that is no more
    shipping.ship(logs, shipped)
    (own,) = read_records(shipped / "cuda-sm_90a.jsonl")
    assert tuple(own.point["tile"]) == GROUP and own.role == VERIFIED and own.device == "NVIDIA H200"
    (base,) = read_records(shipped / "cuda-sm_90.jsonl")  # the best without the instructions of sm_90a
    assert tuple(base.point["tile"]) == TILES[1] and base.role == TRIAL and base.mcpu == "sm_90"
    SPACE.check(OP, {"tile": TILES[1], "splits": 1}, model_named("sm_90"))
    task = dataclasses.make_dataclass("T", ["key", "space"])("0x1", SPACE)
    found = RecordStore(dataclasses.replace(SITE, mcpu="sm_90"), tmp_path / "none", shipped).best(task)
    assert found is not None and found[1] == "shipped"


def test_shipping_again_adds_what_is_better(tmp_path):
    logs, shipped = tmp_path / "logs", tmp_path / "shipped"
    store = RecordStore(SITE, logs)
    store.append(record(TILES[0], 3e-3))
    shipping.ship(logs, shipped)
    assert "0 records added, 1 known" in "\n".join(shipping.ship(logs, shipped))
    store.append(record(TILES[1], 2e-3))
    shipping.ship(logs, shipped)
    found = read_records(shipped / "cuda-sm_90a.jsonl")
    assert [tuple(each.point["tile"]) for each in found] == [TILES[0], TILES[1]]
    assert shipping.ship(tmp_path / "empty", shipped) == [f"no records of a GPU in {tmp_path / 'empty'}"]


def test_lines_of_others_stay(tmp_path):
    append_line(tmp_path / "cuda-sm_90a.jsonl", record(TILES[0], 1e-3, key="0x9").to_json())
    logs = tmp_path / "logs"
    RecordStore(SITE, logs).append(record(TILES[1], 2e-3))
    shipping.ship(logs, tmp_path)
    assert {each.key for each in read_records(tmp_path / "cuda-sm_90a.jsonl")} == {"0x1", "0x9"}
