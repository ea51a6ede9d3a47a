"""The synchronisation pass: the simulator finds no race, and finds one when any flag is missing."""

import random

import pytest

from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.npu.matmul.space import NpuMatmulSpace
from hetero_tvm.targets.npu.driver import DriverError, open_device
from hetero_tvm.targets.npu.stream import Builder, Stream
from hetero_tvm.targets.npu.sync import Synchronizer
from tests.schedules.npu.running import compile_kernel, machine, sample


def test_flags_follow_from_conflicts_only():
    sync = Synchronizer(constant=["weights"])
    sync.add(0, [("weights", 0, 64, False), ("l1", 0, 64, True)])
    sync.add(1, [("l1", 0, 32, False), ("l0a", 0, 32, True)])
    sync.add(1, [("l1", 32, 64, False), ("l0a", 32, 64, True)])  # known already
    sync.add(2, [("l0a", 0, 64, False), ("l0c", 0, 4, True)])
    sync.add(0, [("weights", 64, 128, False), ("l1", 64, 128, True)])  # other bytes
    sync.add(0, [("weights", 64, 128, False), ("l1", 0, 64, True)])  # behind both moves
    found = [(f.source, f.target, f.after, f.before) for f in sync.flags]
    assert found == [(0, 1, 0, 1), (1, 2, 2, 3), (1, 0, 2, 5)]


def test_order_through_a_third_queue_needs_no_flag():
    sync = Synchronizer()
    sync.add(0, [("l1", 0, 64, True)])
    sync.add(1, [("l1", 0, 64, False), ("l0a", 0, 64, True)])
    sync.add(2, [("l0a", 0, 64, False)])
    sync.add(2, [("l1", 0, 64, False)])
    assert [(f.source, f.target) for f in sync.flags] == [(0, 1), (1, 2)]


def test_without_any_one_flag_there_is_a_race():
    mach = machine("edge")
    op = Matmul((40,), 48, 64, ("bias", "relu"))
    region = compile_kernel(NpuMatmulSpace(), op, mach, sample(op))
    stream = Stream.from_bytes(region.stream)
    code = [(ins, tag, values) for _, ins, tag, values in stream.decode()]
    waits = [n for n, (ins, _, _) in enumerate(code) if ins.name == "wait_flag"]
    assert len(waits) > 40
    with open_device(mach.spec) as device:
        device.load(region.stream)
        for dropped in random.Random(0).sample(waits, 25):
            builder = Builder()
            builder.slots, builder.tags = list(stream.slots), list(stream.tags)
            builder.extend([i.encode(v, t) for n, (i, t, v) in enumerate(code) if n != dropped])
            data = builder.finish(needs=stream.needs, events=stream.events).to_bytes()
            with pytest.raises(DriverError, match="data race"):
                device.load(data)
