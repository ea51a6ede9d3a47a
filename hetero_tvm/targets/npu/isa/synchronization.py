"""Synchronisation: the only order between queues is what flags and barriers make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.targets.npu.isa.encoding import Cost, Instruction, Values, u8, u16

QUEUES = ("dma_in", "move", "matrix", "vector", "dma_out")

_FLAG = (
    u8("source", "queue that sets", QUEUES),
    u8("target", "queue that waits", QUEUES),
    u16("event", "id, below the spec's events"),
)

_NO_DATA: dict[str, Any] = {"cost": lambda v, spec: Cost(), "accesses": lambda v: [], "execute": None}


def _check_flag(v: Values, spec: NPUSpec) -> Iterator[str]:
    if v["source"] == v["target"]:
        yield f"source and target are both {v['source']}: a queue is in order by itself"
    if v["event"] >= spec.events:
        yield f"event {v['event']} is out of range: there are {spec.events}"


SET_FLAG = Instruction(
    "set_flag",
    0x01,
    "source",
    "Count the event up, when all earlier instructions of the source queue have completed.",
    _FLAG,
    check=_check_flag,
    **_NO_DATA,
)

WAIT_FLAG = Instruction(
    "wait_flag",
    0x02,
    "target",
    "Hold the target queue until the event is above 0, then count it down: the i-th wait of an event "
    "pairs with its i-th set.",
    _FLAG,
    check=_check_flag,
    **_NO_DATA,
)

BARRIER = Instruction(
    "barrier",
    0x03,
    "all",
    "Hold every queue until all earlier instructions of all queues have completed.",
    (),
    check=lambda v, spec: (),
    **_NO_DATA,
)

INSTRUCTIONS = (SET_FLAG, WAIT_FLAG, BARRIER)
