"""The memory of a model: totals, independent check, JSON."""

import dataclasses
import json

import pytest

from hetero_tvm.errors import UsageError
from hetero_tvm.memory import Buffer, Plan, PlanError
from hetero_tvm.memory.model_plan import Arena, MemoryPlan, Tensor

TENSORS = (
    Tensor("x", "k0", "x", 0, 2, 64, ("/in",)),
    Tensor("y", "k1", "y", 1, 3, 128),
    Tensor("z", "k2", "y", 2, 4, 128),  # written over y
    Tensor("scratch", "k2", "scratch", 2, 3, 32, workspace=True),
)
OFFSETS = {"x": 128, "y": 0, "scratch": 128}
ARENA = Arena("cpu", TENSORS, Plan(OFFSETS, 192, 192, True, "trivial", alignment=64))
MEMORY = MemoryPlan(
    (ARENA,),
    steps=4,
    static_plan=320,
    outputs=12,
    constant_results=(1,),
    in_place=("z",),
    refused={"k0:x": "read later"},
    stack={"k2": 8},
)


def test_tensors_that_work_in_place_are_one_buffer():
    assert ARENA.problem.buffers == (
        Buffer("x", 0, 2, 64),
        Buffer("y", 1, 4, 128),
        Buffer("scratch", 2, 3, 32),
    )
    assert ARENA.naive == 64 + 128 + 128 + 32
    assert ARENA.problem.max_live() == 192 and ARENA.live_without_sharing == 128 + 128 + 32


def test_totals_are_over_all_arenas():
    both = dataclasses.replace(MEMORY, arenas=(ARENA, dataclasses.replace(ARENA, device="gpu")))
    assert (both.peak, both.lower_bound, both.naive) == (384, 384, 704)
    empty = MemoryPlan()
    assert (empty.peak, empty.lower_bound, empty.naive) == (0, 0, 0)


def test_a_right_plan_passes_and_mistakes_are_named_with_their_device():
    MEMORY.verify()
    for offsets, words in (
        ({**OFFSETS, "x": 64}, "cpu: .*overlap"),
        ({**OFFSETS, "scratch": 130}, "not aligned to 64"),
        ({**OFFSETS, "y": 128}, "beyond the capacity"),
    ):
        arena = dataclasses.replace(ARENA, plan=dataclasses.replace(ARENA.plan, offsets=offsets))
        with pytest.raises(PlanError, match=words):
            dataclasses.replace(MEMORY, arenas=(arena,)).verify()


def test_json_round_trip():
    data = json.loads(json.dumps(MEMORY.to_json()))
    assert MemoryPlan.from_json(data) == MEMORY
    timed = dataclasses.replace(ARENA, plan=dataclasses.replace(ARENA.plan, seconds=0.1))
    assert json.loads(json.dumps(dataclasses.replace(MEMORY, arenas=(timed,)).to_json())) == data
    assert data["peak"] == 192 and [t["offset"] for t in data["arenas"][0]["tensors"]] == [128, 0, 0, 128]


def test_damaged_json_is_refused():
    data = MEMORY.to_json()
    for damaged in (None, {}, {**data, "version": 0}, {k: v for k, v in data.items() if k != "arenas"}):
        with pytest.raises(UsageError, match="no memory plan of version 1"):
            MemoryPlan.from_json(damaged)
    for key in ("steps", "in_place", "stack"):
        with pytest.raises(UsageError, match="damaged"):
            MemoryPlan.from_json({k: v for k, v in data.items() if k != key})
    with pytest.raises(UsageError, match="damaged"):
        MemoryPlan.from_json({**data, "arenas": [{"device": "cpu"}]})
