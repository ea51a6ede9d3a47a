"""Programs for tests: on the simulator and on the NumPy reference, the same bytes expected."""

import contextlib

import numpy as np

from hetero_tvm.machines.npu.numbers import WIDTH, numpy_dtype
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.targets.npu.device.driver import Device, DriverError
from hetero_tvm.targets.npu.isa import instructions as isa
from hetero_tvm.targets.npu.isa.reference import Machine
from hetero_tvm.targets.npu.isa.stream import Builder, Stream

EDGE = NPUSpec.preset("edge")
MOBILE = NPUSpec.preset("mobile")
UB = EDGE.scratchpad("ub")

# Fields of instructions that are right, for programs of builder_with_slots.
F16 = {"src_dtype": "f16", "dst_dtype": "f16", "src_strides": (2,), "dst_strides": (2,)}
COPY = {"op": "copy", "src": 0, "dst": 4096, "extents": (64,), **F16}
LOAD = {"elem": 2, "dst_mem": "ub", "src": 0, "dst": 0, "extents": (64,)}
LOAD |= {"src_strides": (2,), "dst_strides": (2,)}
STORE = LOAD | {"dst_mem": "dram", "dst_slot": 1}
FLAG = {"source": "dma_in", "target": "vector", "event": 0}


def contiguous(count, width):
    """extents and strides of a run of elements."""
    return {"extents": (count,), "src_strides": (width,), "dst_strides": (width,)}


def load_all(builder, slot, dst_mem, count, dst=0):
    """``count`` bytes of a slot to a scratchpad."""
    builder.emit("load", elem=1, dst_mem=dst_mem, src_slot=slot, src=0, dst=dst, **contiguous(count, 1))


def store_all(builder, slot, count, src=0):
    builder.emit("store", elem=1, dst_mem="dram", dst_slot=slot, src=src, dst=0, **contiguous(count, 1))


def exponentials():
    """64 values of slot 0 to the unified buffer, their exponentials to slot 1."""
    builder = builder_with_slots()
    builder.emit("load", **LOAD)
    builder.emit("barrier")
    builder.emit("vunary", **COPY | {"op": "exp"})
    builder.emit("barrier")
    builder.emit("store", **STORE | {"src": 4096})
    return builder.finish()


def on_image(emit, image):
    """A program that loads ``image`` (bytes) to all of UB, does what ``emit(builder)`` says, stores UB."""
    builder = Builder()
    source, target = builder.slot("image", UB, "input"), builder.slot("out", UB, "output")
    load_all(builder, source, "ub", len(image))
    builder.emit("barrier")
    emit(builder)
    builder.emit("barrier")
    store_all(builder, target, UB)
    return builder.finish()


def simulate(stream: Stream, arrays, spec=EDGE, trace=False):
    """``Device.run`` on a fresh device."""
    with contextlib.closing(Device(spec)) as device:
        return device.run(device.load(stream.to_bytes()), arrays, trace)


def reference(stream: Stream, arrays, spec=EDGE):
    """Outputs by name, from the NumPy semantics."""
    data = []
    for slot in stream.slots:
        given = arrays.get(slot.name)
        if slot.kind in ("input", "constant"):
            data.append(np.ascontiguousarray(given).copy())
        else:
            data.append(np.zeros(slot.bytes, np.uint8))
    machine = Machine(spec, data)
    machine.run((instruction, values) for _, instruction, _, values in stream.decode())
    return {
        slot.name: machine.slots[i].view(arrays[slot.name][1]).reshape(arrays[slot.name][0])
        for i, slot in enumerate(stream.slots)
        if slot.kind == "output"
    }


def ub_after(emit, image):
    """(simulator's, reference's) bytes of UB after ``emit``, which starts on ``image``."""
    stream = on_image(emit, image)
    arrays = {"image": image, "out": ((UB,), np.uint8)}
    return simulate(stream, arrays).outputs["out"], reference(stream, arrays)["out"]


def numbers(rng, dtype, count):
    """Random finite values of every size that the dtype likes, with zeros of both signs and ones."""
    if dtype in ("i8", "i32"):
        limits = np.iinfo(numpy_dtype(dtype))
        values = rng.integers(limits.min, limits.max, count, endpoint=True)
        small = rng.integers(-8, 9, count)
        return np.where(rng.random(count) < 0.5, values, small).astype(numpy_dtype(dtype))
    values = rng.standard_normal(count) * np.exp2(rng.integers(-6, 5, count))
    special = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.5])
    values = np.where(rng.random(count) < 0.1, rng.choice(special, count), values)
    return values.astype(numpy_dtype(dtype))


def width(dtype):
    return WIDTH[dtype]


def first(stream: Stream, name):
    """The values of the first instruction of that name."""
    return next(values for _, i, _, values in stream.decode() if i is isa.BY_NAME[name])


def builder_with_slots():
    builder = Builder()
    builder.slot("x", 4096, "input")
    builder.slot("y", 4096, "output")
    return builder


def at_load(device, data):
    """Loads a stream: "ok" or the name of the status."""
    try:
        device.unload(device.load(data))
    except DriverError as error:
        return error.status
    return "ok"


def outcome(device, data):
    """Loads a stream, times it and runs it on zeros: "ok" or the name of the status."""
    try:
        program = device.load(data)
    except DriverError as error:
        return error.status
    addresses = []
    try:
        device.time(program, trace=True)
        # Real memory for what a sane program would bind.
        if sum(slot.bytes for slot in program.stream.slots) < 1 << 24:
            for slot in program.stream.slots:
                addresses.append((device.alloc(max(1, slot.bytes)), max(1, slot.bytes)))
                device.write(addresses[-1][0], np.zeros(max(1, slot.bytes), "u1"))
            device.execute(program, addresses)
        return "ok"
    except DriverError as error:
        return error.status
    finally:
        for address, _ in addresses:
            device.free(address)
        device.unload(program)
