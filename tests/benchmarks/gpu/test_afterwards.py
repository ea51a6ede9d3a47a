"""What is made of results: the report on defaults, and records to ship."""

import dataclasses

import pytest

from benchmarks.gpu import calibration, shipping
from hetero_tvm.machines.gpu import model_named
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.records.store import TRIAL, VERIFIED, Record, RecordStore, Site, append_line, read_records
from hetero_tvm.schedules.cuda.products.matmul import CudaMatmulSpace

OP, SPACE, MACHINE = Matmul((4096,), 4096, 4096, (), "float16"), CudaMatmulSpace(), model_named("sm_90a")
TILES = SPACE.knobs(OP, MACHINE)[0].choices
GROUP = next(tile for tile in TILES if len(tile) == 7)
SITE = Site.of(MACHINE, "cuda", "NVIDIA H200")


def record(tile, seconds, role=TRIAL, **fields):
    named = {"key": "0x1", "task": OP.label, "space": SPACE.name, "version": SPACE.version}
    made = Record(
        **named, **dataclasses.asdict(SITE), point={"tile": tile, "splits": 1}, seconds=seconds, role=role
    )
    return dataclasses.replace(made, **fields)


def document(tile):
    row = {
        "task": OP.label, "status": "ok", "space": SPACE.name, "precision": "f16", "op": OP.to_json(),
        "points": {"default": {"point": {"tile": list(tile), "splits": 1}}},
    }  # fmt: skip
    return {"device": {"name": "NVIDIA H200"}, "arch": "sm_90a", "sections": {"matmul": [row]}}


def test_defaults_that_are_far_off_are_told(tmp_path):
    store = RecordStore(SITE, tmp_path)
    for place, tile in enumerate(TILES):  # exactly the reverse of what the space believes
        store.append(record(tile, 1e-3 - 1e-6 * place))
    best = 1e-3 - 1e-6 * (len(TILES) - 1)
    store.append(record(TILES[-1], best, VERIFIED, default_seconds=2 * best))
    lines = calibration.report(document(TILES[0]), tmp_path)
    (line,) = [line for line in lines if line.startswith(f"  {SPACE.name}")]
    assert "2.00" in line and f"place {len(TILES)} of {len(TILES)}" in line and "order -1.00" in line
    assert f"tile {list(TILES[0])} -> {list(TILES[-1])}" in line
    knob = lines[lines.index(line) + 1]
    assert knob.startswith(f"    tile: {TILES[-1]} 1.00, {TILES[-2]}")
    assert lines[0].startswith("NVIDIA H200, sm_90a")


def test_a_good_default_is_left_alone(tmp_path):
    store = RecordStore(SITE, tmp_path)
    for place, tile in enumerate(TILES):
        store.append(record(tile, 1e-3 + 1e-6 * place))
    store.append(record(TILES[0], 1e-3, VERIFIED, default_seconds=1e-3))
    text = "\n".join(calibration.report(document(TILES[0]), tmp_path))
    assert "1.00, place 1 of" in text and "order +1.00" in text and "->" not in text


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((1, 2, 3), (10, 20, 30), 1),
        ((1, 2, 3), (3, 2, 1), -1),
        ((1, 1), (1, 2), 0),
        ((1, 1, 2), (1, 1, 5), 1),
    ],
)
def test_spearman(first, second, expected):
    assert calibration.spearman(first, second) == pytest.approx(expected)


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
