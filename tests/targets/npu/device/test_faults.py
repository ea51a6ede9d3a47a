"""Faults that the machine refuses: every limit is an error with the instruction; nothing crashes or hangs."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.targets.npu.device.driver import DriverError, open_device
from hetero_tvm.targets.npu.isa import instructions as isa
from hetero_tvm.targets.npu.isa.encoding import StreamError
from hetero_tvm.targets.npu.isa.stream import Slot, Stream
from tests.targets.npu.isa import programs
from tests.targets.npu.isa.programs import COPY, FLAG, LOAD, STORE, builder_with_slots, outcome
from tests.targets.npu.matmul import matmul

UB = programs.UB
MOVE = LOAD | {"dst_mem": "l0a"}
MMAD = {"dtype": "f16", "m": 16, "n": 16, "k": 16, "a": 0, "a_pitch": 32, "b": 0, "b_pitch": 32}
MMAD |= {"c": 0, "c_pitch": 64}
OUT = {"src_dtype": "f32", "dst_dtype": "f16", "m": 4, "n": 4, "c": 0, "c_pitch": 16, "dst": 0}
OUT |= {"row_stride": 8, "column_stride": 2}
RESIDUAL = {"residual": "f16", "residual_mem": "ub", "residuals": 512, "residual_pitch": 8}
IM2COL = {"elem": 2, "src": 0, "height": 4, "width": 4, "channels": 2, "row_pitch": 16, "pixel_pitch": 4}
IM2COL |= {"kernel_h": 2, "kernel_w": 2, "out_width": 3, "m": 9, "k": 8, "dst": 0, "dst_pitch": 16}
GATHER = {"dst_mem": "ub", "src": 0, "src_pitch": 8, "rows": 4, "row_bytes": 8, "indices": 0, "count": 2}
GATHER |= {"dst": 64, "dst_pitch": 8}
BINARY = {"op": "add", "src0_dtype": "f16", "src1_dtype": "imm", "dst_dtype": "f16", "src0": 8, "dst": 8}
BINARY |= {"extents": (3,), "src0_strides": (2,), "dst_strides": (2,)}
TERNARY = BINARY | {"op": "muladd", "src2_dtype": "imm"}
REDUCE = COPY | {"op": "sum", "axes": 8, "dst_strides": (0,)}

STATIC = [
    ("load", LOAD | {"elem": 3}, "unsupported", "elem must be 1, 2 or 4"),
    ("load", LOAD | {"dst": UB - 64}, "out of range", "out of range: ub has 65536"),
    ("load", LOAD | {"dst": 1}, "misaligned", "dst is misaligned"),
    ("load", LOAD | {"src": 3}, "misaligned", "src is misaligned"),
    ("load", LOAD | {"dst_strides": (3,)}, "misaligned", "dst_strides"),
    ("load", LOAD | {"dst_strides": (0,)}, "out of range", "destination overlaps itself"),
    ("load", LOAD | {"pad_low": (40,), "pad_high": (30,)}, "out of range", "padding exceeds"),
    ("load", LOAD | {"fill": 1 << 16}, "out of range", "fill"),
    ("load", LOAD | {"src": 4096 - 64}, "out of range", "reaches byte 4160 of slot 0 .*which has 4096"),
    ("load", LOAD | {"src_strides": (-2,)}, "out of range", "before its DRAM slot"),
    ("load", LOAD | {"src_slot": 7}, "out of range", "slot 7, there are 2"),
    ("store", LOAD | {"dst_mem": "l1", "dst_slot": 1}, "out of range", "dst_slot must be 0"),
    ("move", MOVE | {"dst": 16}, "misaligned", "dst is misaligned: 16 is not a multiple of 32"),
    ("move", MOVE | {"extents": (16384,)}, "out of range", "l0a has 16384"),
    ("im2col", IM2COL | {"k_start": 1}, "out of range", "k_start . k is 9"),
    ("im2col", IM2COL | {"dst_pitch": 14}, "out of range", "overlaps itself"),
    ("gather", GATHER | {"indices": 2}, "misaligned", "indices"),
    ("gather", GATHER | {"rows": 1000}, "out of range", "slot 0"),
    ("mmad", MMAD | {"a": 16}, "misaligned", "a is misaligned"),
    ("mmad", MMAD | {"a_pitch": 30}, "out of range", "a overlaps itself"),
    ("mmad", MMAD | {"b_pitch": 33}, "misaligned", "b_pitch"),
    ("mmad", MMAD | {"m": 600, "a_pitch": 32}, "out of range", "l0a has 16384"),
    ("mmad", MMAD | {"m": 200, "n": 60, "b_pitch": 120, "c_pitch": 240}, "out of range", "l0c has 32768"),
    ("move_out", OUT | {"row_stride": 4}, "out of range", "overlaps itself"),
    ("move_out", OUT | {"bias": "i32"}, "unsupported", "i32 bias needs an i32 source"),
    ("move_out", OUT | {"zero_point": 1}, "unsupported", "zero_point"),
    ("move_out", OUT | {"scale_mode": "column", "scales": 2}, "misaligned", "scales"),
    ("move_out", OUT | RESIDUAL | {"residuals": 3}, "misaligned", "residuals"),
    ("move_out", OUT | RESIDUAL | {"residual_pitch": 15}, "misaligned", "residual_pitch"),
    ("move_out", OUT | RESIDUAL | {"residuals": UB - 24}, "out of range", "ub has 65536"),
    ("move_out", OUT | RESIDUAL | {"residuals": 2}, "out of range", "overlaps the residual without"),
    ("vunary", COPY | {"dst": 2}, "out of range", "overlaps src without"),
    ("vunary", COPY | {"src": 1}, "misaligned", "src is misaligned"),
    ("vunary", COPY | {"dst": UB}, "out of range", "ub has 65536"),
    ("vunary", COPY | {"extents": (1 << 24, 1 << 24)}, "out of range", "elements are more"),
    ("vunary", COPY | {"src_dtype": "imm", "src_strides": (0,), "op": "exp"}, "unsupported", "immediate"),
    ("vreduce", REDUCE | {"axes": 0}, "out of range", "axes"),
    ("vreduce", REDUCE | {"dst_strides": (2,)}, "out of range", "reduced axes must be 0"),
    ("set_flag", FLAG | {"event": 32}, "out of range", "event 32"),
    ("wait_flag", FLAG | {"target": "dma_in"}, "malformed stream", "same queue"),
]


def load(builder, spec=programs.EDGE):
    with open_device(spec) as device:
        device.load(builder.finish({}, 0).to_bytes())


@pytest.mark.parametrize("name,fields,status,reason", STATIC, ids=lambda v: v if isinstance(v, str) else "")
def test_refused_at_load(name, fields, status, reason):
    builder = builder_with_slots()
    builder.tag = builder.add_tag("layer.0")
    builder.emit("barrier")
    builder.emit(name, **fields)
    with pytest.raises(DriverError, match=reason) as error:
        load(builder)
    assert error.value.status == status
    values = isa.BY_NAME[name].complete(fields)
    assert f"({isa.BY_NAME[name].to_text(values, 1)})" in str(error.value)  # both disassemblers agree
    assert "instruction 1 at offset " in str(error.value)
    if "slot" not in reason:  # Python says the same without a device
        assert isa.problems(isa.BY_NAME[name], values, programs.EDGE)


@pytest.mark.parametrize(
    "name,fields,field,words",
    [
        ("mmad", MMAD, "dtype", "f16, bf16, i8"),
        ("move_out", OUT, "dst_dtype", "f16, bf16, f32, i8, i32"),
        ("vbinary", BINARY, "src1_dtype", "f16, bf16, f32, i8, i32, imm"),
        ("vunary", COPY, "op", "copy, neg, "),
    ],
)
def test_a_dtype_or_function_that_the_machine_does_not_have(name, fields, field, words):
    builder = builder_with_slots()
    builder.emit("barrier")
    builder.emit(name, **fields)
    stream = builder.finish()
    code = bytearray(stream.code)
    code[4 + isa.BY_NAME[name].offsets()[field]] = 200
    data = dataclasses.replace(stream, code=bytes(code)).to_bytes()
    reason = f"instruction 1 at offset [0-9]+: .*{field} is number 200, of 0 to [0-9]+ .{words}"
    with open_device(programs.EDGE) as device, pytest.raises(DriverError, match=reason) as error:
        device.load(data)
    assert error.value.status == "malformed stream"
    with pytest.raises(StreamError, match=reason):
        list(Stream.from_bytes(data).decode())


@pytest.mark.parametrize(
    "name,fields",
    [
        *[("load", LOAD), ("store", STORE), ("move", MOVE), ("im2col", IM2COL), ("gather", GATHER)],
        *[("mmad", MMAD), ("mmad", MMAD | {"dtype": "i8", "accumulate": "yes"}), ("move_out", OUT)],
        *[("vunary", COPY), ("vreduce", REDUCE), ("set_flag", FLAG), ("barrier", {})],
    ],
)
def test_the_same_is_accepted_when_nothing_is_wrong(name, fields):
    builder = builder_with_slots()
    builder.emit(name, **fields)
    load(builder)
    assert not isa.problems(isa.BY_NAME[name], isa.BY_NAME[name].complete(fields), programs.EDGE)


@pytest.mark.parametrize("memory", ["l1", "l0a", "l0b", "l0c", "ub"])
def test_a_smaller_machine_refuses_the_program_at_load(memory):
    stream = matmul(128, 128, 128, (64, 64, 64))
    needs = stream.needs[memory]
    small = dataclasses.replace(programs.EDGE, **{f"{memory}_kib": needs // 1024 // 2 or 1})
    reason = f"needs {needs} bytes of {memory}"
    with open_device(small) as device, pytest.raises(DriverError, match=reason) as error:
        device.load(stream.to_bytes())
    assert error.value.status == "unsupported"


# --- at run time -------------------------------------------------------------------------------


def run(builder, arrays=None):
    arrays = arrays or {"x": np.zeros(4096, "u1"), "y": ((4096,), "u1")}
    return programs.simulate(builder.finish(), arrays)


@pytest.mark.parametrize(
    "name,fields,where",
    [
        *[("store", STORE, "ub"), ("move", MOVE, "l1"), ("im2col", IM2COL, "l1"), ("gather", GATHER, "ub")],
        *[("mmad", MMAD, "l0a"), ("move_out", OUT, "l0c"), ("vunary", COPY, "ub"), ("vreduce", REDUCE, "ub")],
        *[("load", LOAD | {"src_slot": 1}, "slot 1"), ("vbinary", BINARY, "ub"), ("vternary", TERNARY, "ub")],
    ],
)
def test_reading_what_was_never_written(name, fields, where):
    builder = builder_with_slots()
    builder.emit(name, **fields)
    text = isa.BY_NAME[name].to_text(isa.BY_NAME[name].complete(fields))
    with pytest.raises(DriverError, match=f"of {where}.*nothing has written") as error:
        run(builder)
    assert error.value.status == "uninitialized read" and text in str(error.value)


def test_one_unwritten_byte_is_enough():
    builder = builder_with_slots()
    builder.emit("load", **LOAD | {"extents": (63,)})
    builder.emit("barrier")
    builder.emit("vunary", **COPY)
    with pytest.raises(DriverError, match="instruction 2 "):
        run(builder)


def test_outputs_that_are_not_written_cannot_be_read_back():
    with pytest.raises(DriverError, match="not all were written"):
        run(builder_with_slots())


def test_scratchpads_do_not_survive_a_run():
    first = builder_with_slots()
    first.emit("load", **LOAD)
    second = builder_with_slots()
    second.emit("vunary", **COPY)
    with open_device(programs.EDGE) as device:
        device.time(device.load(first.finish().to_bytes()))
        with pytest.raises(DriverError, match="nothing has written"):
            device.time(device.load(second.finish().to_bytes()))


def test_deadlock_names_every_queue_that_waits():
    builder = builder_with_slots()
    builder.emit("wait_flag", source="vector", target="dma_in", event=1)
    builder.emit("set_flag", source="dma_in", target="vector", event=1)
    builder.emit("wait_flag", source="dma_in", target="vector", event=1)
    builder.emit("set_flag", source="vector", target="dma_in", event=1)
    waits = "dma_in waits at instruction 0.*vector waits at instruction 2"
    with pytest.raises(DriverError, match=waits) as error:
        run(builder)
    assert error.value.status == "deadlock"


def test_a_barrier_that_one_queue_cannot_reach_is_a_deadlock():
    builder = builder_with_slots()
    builder.emit("wait_flag", source="vector", target="move", event=0)
    builder.emit("barrier")
    builder.emit("set_flag", source="vector", target="move", event=0)
    with pytest.raises(DriverError, match="deadlock"):
        run(builder)


def test_a_fill_has_no_source():
    """All padding: no slot is read, so it need not be there."""
    builder = builder_with_slots()
    builder.emit("load", **LOAD | {"src_slot": 65535, "src": 1 << 40, "pad_high": (64,), "fill": 7})
    builder.emit("barrier")
    builder.emit("store", **STORE)
    arrays = {"x": np.zeros(4096, "u1"), "y": ((4096,), "u1")}
    stream = builder.finish()
    with open_device(programs.EDGE) as device:
        addresses = [(device.alloc(4096), 4096) for _ in range(2)]
        device.execute(device.load(stream.to_bytes()), addresses)
        assert (device.read(addresses[1][0], (64,), "u2") == 7).all()
    assert (programs.reference(stream, arrays)["y"][:128].view("u2") == 7).all()


# --- damage ----------------------------------------------------------------------------------------


def small_program():
    builder = builder_with_slots()
    builder.tag = builder.add_tag("exp")
    builder.emit("load", **LOAD)
    builder.emit("set_flag", **FLAG)
    builder.emit("wait_flag", **FLAG)
    builder.emit("vunary", **COPY | {"op": "exp"})
    builder.emit("barrier")
    builder.emit("store", **STORE | {"src": 4096})
    return builder.finish()


def test_any_byte_flipped_is_rejected_at_load():
    data = small_program().to_bytes()
    with open_device(programs.EDGE) as device:
        device.load(data)
        for at in range(len(data)):
            damaged = bytearray(data)
            damaged[at] ^= 1 << at % 8
            with pytest.raises(DriverError) as error:
                device.load(bytes(damaged))
            assert error.value.status == "malformed stream"
        for length in range(0, len(data), 7):
            with pytest.raises(DriverError):
                device.load(data[:length])


@pytest.mark.thorough
def test_code_of_random_instructions():
    """Streams of valid instructions with random fields: most are refused, none is fatal."""
    rng = np.random.default_rng(11)
    with open_device(programs.EDGE) as device:
        for _ in range(300):
            code, count = b"", int(rng.integers(1, 12))
            for _ in range(count):
                ins = isa.INSTRUCTIONS[int(rng.integers(len(isa.INSTRUCTIONS)))]
                values = {}
                for f in ins.fields:
                    if f.kind == "f32":
                        values[f.name] = float(rng.standard_normal())
                    elif f.names:
                        values[f.name] = str(rng.choice(f.names))
                    else:
                        low, high = f.limits
                        picks = [low, high, low + 1, 2, 4, 32, 64]
                        picked = [min(high, max(low, int(rng.choice(picks)))) for _ in range(f.count)]
                        values[f.name] = picked if f.count > 1 else picked[0]
                code += ins.encode(values)
            slots = [Slot("x", 4096, "input"), Slot("y", 4096, "output")]
            outcome(device, Stream(slots, [""], code, count, {}, 0).to_bytes())
