"""The synchronisation pass: the simulator finds no race, and finds one when any flag is missing."""

import random

import pytest

from hetero_tvm.machines.npu.spec import SCRATCHPADS
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.npu.matmul.space import NpuMatmulSpace
from hetero_tvm.targets.npu.device.driver import DriverError, open_device
from hetero_tvm.targets.npu.isa.stream import Stream
from hetero_tvm.targets.npu.regions.sites import Instr
from hetero_tvm.targets.npu.regions.sync import (
    ONLY_READ,
    Location,
    Packed,
    Synchronizer,
    scratchpad_key,
    slot_key,
)
from tests.schedules.npu.running import compile_kernel, machine, sample
from tests.targets.npu.regions.flag_mutants import without

LOCATIONS = [
    *(Location(scratchpad_key(name)) for name in SCRATCHPADS),
    Location(ONLY_READ),
    Location(slot_key(1), 64),
]
WEIGHTS, RESULT = 0, 1
"""Parameters."""


def synchronized(*instrs):
    """(source, target, after, before) of the flags of instructions: (queue, accesses)."""
    sync = Synchronizer()
    made = [Instr(bytes(8), queue, accesses, None, None) for queue, accesses in instrs]
    sync.add(Packed(made), LOCATIONS)
    return [tuple(flag) for flag in sync.flags.tolist()]


def test_flags_follow_from_conflicts_only():
    found = synchronized(
        (0, [(WEIGHTS, 0, 64, False), ("l1", 0, 64, True)]),
        (1, [("l1", 0, 32, False), ("l0a", 0, 32, True)]),
        (1, [("l1", 32, 64, False), ("l0a", 32, 64, True)]),  # known already
        (2, [("l0a", 0, 64, False), ("l0c", 0, 4, True)]),
        (0, [(WEIGHTS, 64, 128, False), ("l1", 64, 128, True)]),  # other bytes
        (0, [(WEIGHTS, 64, 128, False), ("l1", 0, 64, True)]),  # behind both moves
        (3, [(RESULT, 0, 64, True), ("ub", 0, 64, False)]),
        (4, [(RESULT, 64, 128, True)]),
        (4, [(WEIGHTS, 0, 64, True)]),  # declared as only read
    )
    assert found == [(0, 1, 0, 1), (1, 2, 2, 3), (1, 0, 2, 5)]


def test_order_through_a_third_queue_needs_no_flag():
    found = synchronized(
        (0, [("l1", 0, 64, True)]),
        (1, [("l1", 0, 64, False), ("l0a", 0, 64, True)]),
        (2, [("l0a", 0, 64, False)]),
        (2, [("l1", 0, 64, False)]),
    )
    assert [flag[:2] for flag in found] == [(0, 1), (1, 2)]


def test_columns_beside_one_another_do_not_conflict():
    """Runs of 16 bytes every 64, four rows of them: a reader of columns waits for those only."""
    columns = [("l1", 1000 + 16 * n, 1000 + 16 * n + 3 * 64 + 16, True, 64, 16) for n in range(4)]
    found = synchronized(
        *((4, [tile]) for tile in columns),
        (1, [("l1", 1016, 1016 + 3 * 64 + 16, False, 64, 16)]),  # the second tile
        (1, [("l1", 1032, 1032 + 64 + 24, False, 64, 24)]),  # parts of the third and fourth
        (2, [("l1", 1064, 1080, False)]),  # one run, of the first
        (2, [("l1", 1080, 1081, False, 0, 0), ("l1", 1000, 1256, False, 32, 1)]),  # other pitches: all
        (0, [("l1", 1064, 1128, True)]),  # a whole row: behind every reader
    )
    assert found == [(4, 1, 1, 4), (4, 1, 3, 5), (4, 2, 0, 6), (4, 2, 3, 7), (2, 0, 7, 8), (1, 0, 5, 8)]


def test_what_is_written_beside_what_was_read_stays_ordered():
    """A write of some columns does not make earlier accesses of others forgotten."""
    found = synchronized(
        (1, [("l1", 0, 256, False)]),
        (4, [("l1", 0, 208, True, 64, 16)]),
        (0, [("l1", 16, 32, True)]),  # still behind the read
        (1, [("l1", 0, 16, False)]),  # and this behind the write
    )
    assert found == [(1, 4, 0, 1), (1, 0, 0, 2), (4, 1, 1, 3)]


def test_marks_keep_what_comes_behind_them():
    sync = Synchronizer()

    def add(queue, *access):
        sync.add(Packed([Instr(bytes(8), queue, [access], None, None)]), LOCATIONS)

    add(4, "l1", 0, 16, True)
    mark = sync.mark()
    add(4, "l1", 32, 48, True)
    sync.merge(Location(scratchpad_key("l1")), 64, mark)
    add(1, "l1", 16, 32, False)
    add(1, "l1", 0, 16, False)
    assert sync.flags.tolist() == [(4, 1, 0, 3)]


def test_what_is_merged_still_conflicts():
    """A merged tensor counts as one access, by its last instruction."""
    tiles = [(0, [("l1", 16 * n, 16 * n + 16, True)]) for n in range(4)]
    sync = Synchronizer()
    sync.add(Packed([Instr(bytes(8), *tile, None, None) for tile in tiles]), LOCATIONS)
    sync.merge(Location(scratchpad_key("l1")), 64, sync.mark())
    sync.add(Packed([Instr(bytes(8), 1, [("l1", 0, 16, False)], None, None)]), LOCATIONS)
    assert sync.flags.tolist() == [(0, 1, 3, 4)]


def test_an_instruction_waits_for_what_it_is_told_to():
    sync = Synchronizer()
    stores = [Instr(bytes(8), 4, [(RESULT, 64 * n, 64 * n + 64, True)], None, None) for n in range(3)]
    sync.add(Packed(stores), LOCATIONS)
    mark = sync.mark()
    sync.add(Packed(stores[:1]), LOCATIONS)
    for _ in range(2):  # known already the second time
        sync.after("dma_in", "dma_out", mark)
        sync.add(Packed([Instr(bytes(8), 0, [("l1", 0, 64, True)], None, None)]), LOCATIONS)
    assert [tuple(flag) for flag in sync.flags.tolist()] == [(4, 0, 2, 4)]


def test_without_any_one_flag_there_is_a_race():
    mach = machine("edge")
    op = Matmul((40,), 48, 64, ("bias", "relu"))
    region = compile_kernel(NpuMatmulSpace(), op, mach, sample(op))
    stream = Stream.from_bytes(region.stream)
    waits = [(at, ins.size) for at, ins, *_ in stream.decode() if ins.name == "wait_flag"]
    assert len(waits) > 40
    with open_device(mach.spec) as device:
        device.load(region.stream)
        for dropped in random.Random(0).sample(waits, 25):
            with pytest.raises(DriverError, match="data race"):
                device.load(without(stream, *dropped).to_bytes())
