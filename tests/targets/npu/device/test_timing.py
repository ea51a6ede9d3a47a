"""Cycles of small programs, worked out by hand; counters and traces that add up."""

import dataclasses
import math

import numpy as np
import pytest

from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.targets.npu.device.driver import STALLS, open_device
from hetero_tvm.targets.npu.isa import instructions as isa
from hetero_tvm.targets.npu.isa.stream import Builder
from hetero_tvm.targets.npu.isa.synchronization import QUEUES
from tests.targets.npu.isa import programs
from tests.targets.npu.matmul import matmul

MOBILE = dataclasses.replace(programs.MOBILE, dram_bytes_per_cycle=64)  # whole numbers below
ISSUE, LATENCY = 4, 200


def timed(emit, spec=MOBILE):
    """(run, trace by instruction) in timing mode; slots x and y of 1 MiB each."""
    builder = Builder()
    builder.slot("x", 1 << 20, "input")
    builder.slot("y", 1 << 20, "output")
    emit(builder)
    with open_device(spec) as device:
        run = device.time(device.load(builder.finish().to_bytes()), trace=True)
    total = run.counters.cycles
    for name, queue in run.counters.queues.items():
        assert queue.busy + queue.issue + sum(queue.stall.values()) + queue.idle == pytest.approx(total), name
    return run, {int(e["instruction"]): (e["start"], e["end"]) for e in run.trace}


def copy(name, count, mem, dst=0, src=0, **fields):
    memory = {"dst_mem": mem} if mem else {}
    return name, {"elem": 2, "src": src, "dst": dst, **memory, **programs.contiguous(count, 2), **fields}


def emit(*instructions):
    def program(builder):
        for name, fields in instructions:
            builder.emit(name, **fields)

    return program


def test_one_load():
    # issue, latency, 8192 bytes at 64 per cycle
    run, trace = timed(emit(copy("load", 4096, "ub")))
    assert trace[0] == (ISSUE + LATENCY, ISSUE + LATENCY + 128) and run.counters.cycles == 332
    assert run.counters.dram_read_bytes == 8192
    assert run.counters.queues["dma_in"].stall["latency"] == LATENCY


def test_latency_passes_behind_the_data_of_the_load_before():
    _, trace = timed(emit(*(copy("load", 4096, "ub", dst=8192 * i) for i in range(3))))
    assert [trace[i][1] for i in range(3)] == [332, 460, 588]


def test_only_so_many_descriptors_are_under_way():
    one = dataclasses.replace(MOBILE, dma_outstanding=1)
    _, trace = timed(emit(*(copy("load", 4096, "ub", dst=8192 * i) for i in range(3))), one)
    assert [trace[i][1] for i in range(3)] == [332, 664, 996]


def test_a_store_is_done_when_memory_acknowledges():
    fill = (
        "vunary",
        {
            "op": "copy",
            "src_dtype": "imm",
            "dst_dtype": "f16",
            "dst": 0,
            "extents": (4096,),
            "dst_strides": (2,),
        },
    )
    run, trace = timed(emit(fill, ("barrier", {}), copy("store", 4096, "dram", dst_slot=1)))
    filled = ISSUE + 4096 // 128
    assert trace[0] == (ISSUE, filled)
    start = filled + ISSUE + ISSUE  # the barrier's issue, then the store's
    assert trace[2] == (start, start + 128) and run.counters.cycles == start + 128 + LATENCY
    assert run.counters.dram_write_bytes == 8192 and run.counters.queues["dma_out"].stall["barrier"] == filled


def test_short_runs_cost_whole_granules_of_dram():
    # 1024 runs of 2 bytes: 32 bytes each
    run, trace = timed(emit(copy("load", 1024, "ub", src_strides=(64,))))
    assert run.counters.dram_read_bytes == 1024 * 32 and trace[0][1] - trace[0][0] == 1024 * 32 / 64


def test_two_engines_share_dram():
    """A store of 8192 bytes beside a load of 16384: both at half rate until the store is done."""
    ready = [
        (
            "vunary",
            {
                "op": "copy",
                "src_dtype": "imm",
                "dst_dtype": "f16",
                "dst": 0,
                "extents": (4096,),
                "dst_strides": (2,),
            },
        ),
        ("barrier", {}),
    ]
    fast = dataclasses.replace(MOBILE, dram_latency=0)
    run, trace = timed(emit(*ready, copy("load", 8192, "l1"), copy("store", 4096, "dram", dst_slot=1)), fast)
    start = trace[3][0]
    assert trace[3][1] == start + 2 * 128  # alone: 128
    assert trace[2] == (start, start + 2 * 128 + 128)  # alone: 256; 128 were done in the shared time
    assert run.counters.queues["dma_out"].stall["dram"] == pytest.approx(128)
    assert run.counters.queues["dma_in"].stall["dram"] == pytest.approx(128)


def test_a_load_into_l1_takes_bank_cycles_from_a_move():
    """The move asks for all of L1's banks, the load for 64/512 of them: 9/8 slower while both work."""
    spec = dataclasses.replace(MOBILE, dram_latency=0, issue_cycles=0)
    run, trace = timed(
        emit(
            copy("load", 16384, "l1"),
            ("barrier", {}),
            copy("load", 16384, "l1", dst=1 << 16),
            copy("move", 16384, "l0a"),
        ),
        spec,
    )
    start = trace[3][0]
    assert trace[3][1] - start == pytest.approx(64 * 9 / 8)  # 32768 bytes at 512
    assert run.counters.queues["move"].stall["port"] == pytest.approx(8)
    assert trace[2][1] - start == pytest.approx(512 + 64 * 1 / 8)


MMAD = {"dtype": "f16", "a": 0, "a_pitch": 256, "b": 0, "b_pitch": 256, "c": 0, "c_pitch": 512}


BLOCKS = [("edge", (8, 8, 16)), ("mobile", (16, 16, 16)), ("datacenter", (32, 32, 16))]


@pytest.mark.parametrize("preset,block", BLOCKS)
@pytest.mark.parametrize("m,n,k", [(64, 64, 64), (1, 1, 1), (33, 17, 65), (16, 48, 128)])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "i8"])
def test_mmad_costs_whole_blocks(preset, block, m, n, k, dtype):
    depth = block[2] * (2 if dtype == "i8" else 1)
    expected = math.ceil(m / block[0]) * math.ceil(n / block[1]) * math.ceil(k / depth)
    values = isa.BY_NAME["mmad"].complete(MMAD | {"dtype": dtype, "m": m, "n": n, "k": k})
    assert isa.BY_NAME["mmad"].cost(values, NPUSpec.preset(preset)).cycles(NPUSpec.preset(preset)) == expected


VECTOR = {"op": "add", "dst": 0, "src0": 0, "src1": 32768, "extents": (4096,)}


@pytest.mark.parametrize(
    "fields,cycles",
    [
        ({"dtypes": ("f16", "f16", "f16")}, 4096 / 128),
        ({"dtypes": ("i8", "i8", "i8")}, 4096 / 128),
        ({"dtypes": ("f32", "f16", "f16")}, 4096 / 64),  # one wide operand halves the rate
        ({"dtypes": ("f16", "f16", "f16"), "op": "div"}, 4 * 4096 / 128),
        ({"dtypes": ("f32", "f32", "f32"), "op": "div"}, 4 * 4096 / 64),
        # Columns: every element is a granule of its own, from 32 banks, beside two dense operands.
        ({"dtypes": ("f16", "f16", "f16"), "extents": (1024,), "src1_strides": (34,)}, (1024 + 64 + 64) / 32),
        # ... and from one bank when the step is that of all banks.
        ({"dtypes": ("f16", "f16", "f16"), "extents": (64,), "src1_strides": (1024,)}, 64 + (4 + 4) / 32),
        # A broadcast source is fetched once.
        ({"dtypes": ("f16", "f16", "f16"), "src1_strides": (0,)}, 4096 / 128),
    ],
)
def test_vector_costs(fields, cycles):
    dtypes = fields.pop("dtypes")
    fields = VECTOR | fields
    for name, dtype in zip(("dst", "src0", "src1"), dtypes, strict=True):
        fields = {f"{name}_dtype": dtype, f"{name}_strides": (programs.width(dtype),)} | fields
    if fields["dst_dtype"] != fields["src0_dtype"]:
        fields["dst"] = 65536
    values = isa.BY_NAME["vbinary"].complete(fields)
    assert isa.BY_NAME["vbinary"].cost(values, MOBILE).cycles(MOBILE) == pytest.approx(cycles)


def test_other_costs():
    def cycles(name, fields):
        return isa.BY_NAME[name].cost(isa.BY_NAME[name].complete(fields), MOBILE).cycles(MOBILE)

    tile = {"m": 64, "n": 32, "c": 0, "c_pitch": 128, "dst": 0, "row_stride": 64, "column_stride": 2}
    assert cycles("move_out", tile | {"src_dtype": "f32", "dst_dtype": "f16"}) == 64 * 32 * 4 / 256
    assert cycles("move", copy("move", 2048, "l0a")[1]) == 4096 / 512
    assert cycles("move", copy("move", 2048, "l0b")[1]) == 4096 / 256
    assert cycles("store", copy("store", 2048, "l1")[1]) == 4096 / 256
    sums = {"op": "sum", "axes": 8, "src_dtype": "f16", "dst_dtype": "f32", "extents": (16, 256), "dst": 0}
    sums |= {"src": 65536, "src_strides": (512, 2), "dst_strides": (4, 0)}
    assert cycles("vreduce", sums) == 16 * 256 / 64 + 7


def test_the_simulator_charges_what_the_declarations_say():
    """Every instruction of random programs, alone on the machine, takes the cost of its declaration."""
    rng = np.random.default_rng(2)
    spec = dataclasses.replace(MOBILE, dram_latency=0, issue_cycles=0)
    instructions = []
    for _ in range(60):
        extents = tuple(int(n) for n in rng.choice([1, 2, 5, 16], 3))
        pad, dense = int(rng.choice([0, 2, 14, 32, 64])), (2,)
        for n in reversed(extents[1:]):
            dense = (dense[0] * n + pad, *dense)
        broadcast = tuple(0 if rng.random() < 0.2 else s for s in dense)
        box = {"elem": 2, "extents": extents, "src_strides": broadcast, "dst_strides": dense}
        instructions.append(("load", box | {"dst_mem": str(rng.choice(["l1", "ub"])), "src": 0, "dst": 0}))
        instructions.append(("store", box | {"dst_mem": "l1", "src": 0, "dst": 0}))
        instructions.append(("store", box | {"dst_mem": "dram", "dst_slot": 1, "src": 0, "dst": 0}))
        instructions.append(("move", box | {"dst_mem": str(rng.choice(["l0a", "l0b"])), "src": 0, "dst": 0}))
        operands = {"extents": extents, "dst": 65536, "dst_dtype": "f16", "dst_strides": dense}
        operands |= {"src": 0, "src_dtype": "f16", "src_strides": broadcast}
        instructions.append(("vunary", operands | {"op": str(rng.choice(["exp", "copy"]))}))
        kept = tuple(s if i < 2 else 0 for i, s in enumerate(dense))
        instructions.append(("vreduce", operands | {"op": "max", "axes": 8, "dst_strides": kept}))
        image = {"height": 8, "width": 8, "channels": int(rng.integers(1, 20)), "row_pitch": 512}
        image |= {"pixel_pitch": int(rng.choice([6, 40, 64])), "kernel_h": 3, "kernel_w": 3, "out_width": 6}
        patches = {"elem": 2, "src": 0, "m": 36, "k": 9, "dst": 0, "dst_pitch": 32}
        instructions.append(("im2col", image | patches))
    everything = [copy("load", 1 << 18, "l1"), copy("load", 1 << 16, "ub"), ("barrier", {})]
    steps = everything + [step for pair in ((i, ("barrier", {})) for i in instructions) for step in pair]
    run, trace = timed(emit(*steps), spec)
    for index, (name, fields) in enumerate(steps):
        if index >= len(everything) and name != "barrier":
            cost = isa.BY_NAME[name].cost(isa.BY_NAME[name].complete(fields), spec)
            assert trace[index][1] - trace[index][0] == pytest.approx(cost.cycles(spec)), (name, fields)


def test_flags_cost_their_issue_and_a_set_waits_for_what_is_before_it():
    flag = {"source": "dma_in", "target": "vector", "event": 0}
    fill = (
        "vunary",
        {
            "op": "copy",
            "src_dtype": "imm",
            "dst_dtype": "f16",
            "dst": 65536,
            "extents": (128,),
            "dst_strides": (2,),
        },
    )
    run, trace = timed(emit(copy("load", 4096, "ub"), ("set_flag", flag), ("wait_flag", flag), fill))
    # The flag rises with the end of the load, at 332; then the vector queue issues.
    assert trace[3] == (332 + ISSUE, 332 + ISSUE + 1)
    assert run.counters.queues["vector"].stall["flag"] == 332 - ISSUE


def test_a_gather_waits_for_its_indices():
    rows = {"dst_mem": "ub", "src": 0, "src_pitch": 64, "rows": 4, "row_bytes": 64, "count": 4}
    gather = ("gather", rows | {"indices": 0, "dst": 8192, "dst_pitch": 64})
    load = copy("load", 32, "ub")
    _, trace = timed(emit(load, gather))
    # Issue, latency and a cycle for the indices, then issue, latency and 4 cycles for the rows.
    assert trace[0] == (204, 205) and trace[1] == (205 + 204, 205 + 208)
    # Behind a load of anything else it runs ahead: 4 cycles of issue later, in its shadow.
    _, trace = timed(emit(load, ("barrier", {}), copy("load", 32, "ub", dst=4096), gather))
    start = 205 + ISSUE
    assert trace[2] == (start + 204, start + 205) and trace[3] == (start + 208, start + 212)


def test_energy_by_hand():
    stream = programs.exponentials()
    cost = programs.EDGE.energy_pj
    with open_device(programs.EDGE) as device:
        run = device.time(device.load(stream.to_bytes()), trace=True)
    moved = 128 * (cost.dram_byte + cost.ub_byte) + cost.instruction  # 64 elements of two bytes
    exp = 64 * cost.vector_transcendental + 256 * cost.ub_byte + cost.instruction
    assert run.trace["joule"] == pytest.approx(1e-12 * np.array([moved, exp, moved]))
    total = 2 * moved + exp + run.counters.cycles * cost.static_per_cycle
    assert run.counters.energy_joule == pytest.approx(1e-12 * total)
    macs = {"dtype": "i8", "m": 5, "n": 7, "k": 64, "a": 0, "a_pitch": 64, "b": 0, "b_pitch": 32, "c": 0}
    builder = programs.builder_with_slots()
    for memory, count in (("l0a", 5 * 64), ("l0b", 64 * 32)):
        fill = {"elem": 1, "dst_mem": memory, "src": 0, "dst": 0, "extents": (count,), "dst_strides": (1,)}
        builder.emit("move", **fill | {"pad_low": (count,)})
    builder.emit("barrier")
    builder.emit("mmad", **macs | {"c_pitch": 32})
    with open_device(programs.EDGE) as device:
        run = device.time(device.load(builder.finish().to_bytes()), trace=True)
    l0 = 5 * 64 + 64 * 7 + 5 * 7 * 4
    expected = 5 * 7 * 64 * cost.mac_i8 + l0 * cost.l0_byte + cost.instruction
    assert run.trace["joule"][-1] == pytest.approx(1e-12 * expected)


def test_a_product_keeps_the_matrix_unit_busy_and_the_counters_add_up():
    spec = NPUSpec.preset("datacenter")
    stream = matmul(512, 512, 1024, (256, 256, 128))
    with open_device(spec) as device:
        run = device.time(device.load(stream.to_bytes()), trace=True)
    counters = run.counters
    assert counters.macs == 512 * 512 * 1024
    assert counters.matrix_block_cycles == spec.matrix_cycles(512, 512, 1024)
    assert counters.queues["matrix"].busy == pytest.approx(counters.matrix_block_cycles)
    assert counters.dram_read_bytes == 4 * (256 + 256) * 1024 * 2
    assert counters.dram_write_bytes == 512 * 512 * 4
    for name, queue in counters.queues.items():
        parts = queue.busy + queue.issue + sum(queue.stall[s] for s in STALLS) + queue.idle
        assert parts == pytest.approx(counters.cycles), name
        mine = run.trace[run.trace["queue"] == QUEUES.index(name)]
        assert (mine["start"][1:] >= mine["end"][:-1]).all()  # one at a time
        # What a trace shows as work is work and its slowing down by others.
        assert (mine["end"] - mine["start"]).sum() == pytest.approx(
            queue.busy + queue.stall["dram"] + queue.stall["port"]
        )
    assert set(run.trace["tag"]) == {1} and stream.tags[1] == "matmul"
    assert counters.energy_joule > 1e-12 * spec.energy_pj.mac_f16 * counters.macs


def test_numbers_do_not_change_time():
    stream = matmul(64, 64, 96, (32, 32, 32))
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((64, 96)).astype("f2") for name in ("a", "b")}
    with open_device(programs.EDGE) as device:
        program = device.load(stream.to_bytes())
        timing = device.time(program)
        run = device.run(program, arrays | {"c": ((64, 64), "f4")})
    assert run.counters == timing.counters
    assert np.allclose(run.outputs["c"], arrays["a"].astype("f4") @ arrays["b"].astype("f4").T, atol=1e-4)
