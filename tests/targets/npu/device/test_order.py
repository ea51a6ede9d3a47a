"""Data races: found from the order alone, exact on bytes, the same on machines of any speed."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.targets.npu.device.driver import DriverError, open_device
from tests.targets.npu.isa import programs
from tests.targets.npu.isa.programs import COPY, FLAG, LOAD, STORE, at_load, builder_with_slots
from tests.targets.npu.matmul import matmul
from tests.targets.npu.regions.flag_mutants import Judge, mutants, without


def two_queues(load_fields, copy_fields, ordered):
    builder = builder_with_slots()
    builder.emit("load", **LOAD | {"extents": (2048,)})
    builder.emit("barrier")
    builder.emit("load", **LOAD | load_fields)
    if ordered:
        builder.emit("set_flag", **FLAG)
        builder.emit("wait_flag", **FLAG)
    builder.emit("vunary", **COPY | {"dst": 8192} | copy_fields)
    return builder.finish()


@pytest.mark.parametrize(
    "load_fields,copy_fields,race",
    [
        ({"dst": 0}, {"src": 0}, True),  # read after write
        ({"dst": 0}, {"src": 126}, True),  # one element in common
        ({"dst": 0}, {"src": 128}, False),
        ({"dst": 8192}, {"src": 2048}, True),  # write after write
        # Interleaved: even and odd elements, left and right halves of rows, columns.
        ({"dst_strides": (4,)}, {"src": 2, "src_strides": (4,)}, False),
        ({"dst_strides": (4,)}, {"src": 4, "src_strides": (4,)}, True),
        (
            {"extents": (8, 8), "src_strides": (16, 2), "dst_strides": (32, 2)},
            {"src": 16, "extents": (8, 8), "src_strides": (32, 2), "dst_strides": (16, 2)},
            False,
        ),
        (
            {"extents": (8, 8), "src_strides": (16, 2), "dst_strides": (32, 2)},
            {"src": 14, "extents": (8, 8), "src_strides": (32, 2), "dst_strides": (16, 2)},
            True,
        ),
        (
            {"extents": (4, 4, 4), "src_strides": (32, 8, 2), "dst_strides": (512, 64, 2)},
            {"src": 8, "extents": (4, 4, 4), "src_strides": (512, 64, 2), "dst_strides": (32, 8, 2)},
            False,
        ),
    ],
)
@pytest.mark.parametrize("spec", [programs.EDGE, programs.MOBILE], ids=lambda s: s.name)
def test_races_are_exact_on_bytes(load_fields, copy_fields, race, spec):
    with open_device(spec) as device:
        device.time(device.load(two_queues(load_fields, copy_fields, ordered=True).to_bytes()))
        unordered = two_queues(load_fields, copy_fields, ordered=False).to_bytes()
        if not race:
            device.time(device.load(unordered))
            return
        with pytest.raises(DriverError, match="instruction 3 .*queue vector and instruction 2 ") as error:
            device.load(unordered)
        assert error.value.status == "data race"


def test_a_race_in_dram_between_slots_of_one_allocation():
    builder = builder_with_slots()
    builder.emit("load", **LOAD)
    builder.emit("barrier")
    builder.emit("load", **LOAD | {"dst": 4096})
    builder.emit("store", **STORE)
    data = builder.finish().to_bytes()
    with open_device(programs.EDGE) as device:
        address = device.alloc(8192)
        device.write(address, np.zeros(8192, "u1"))
        program = device.load(data)
        device.execute(program, [(address, 4096), (address + 4096, 4096)])
        with pytest.raises(DriverError, match="data race"):
            device.execute(program, [(address + 64, 4096), (address, 4096)])


@pytest.mark.thorough
def test_flags_removed_or_reordered():
    """200 mutants, of them 133 without one flag: a race is reported exactly when an independent judge
    finds one, whatever the speed of the machine.
    """
    stream = matmul(64, 64, 96, (32, 32, 32))
    made = mutants(stream, np.random.default_rng(7), 200)
    slow = dataclasses.replace(programs.EDGE, name="slow", dram_latency=5000, dram_bytes_per_cycle=1)
    quick = dataclasses.replace(programs.MOBILE, name="quick", dram_latency=0, issue_cycles=0)
    judge = Judge(stream)
    expected = [judge.verdict(mutant) for mutant in made]
    for spec in (programs.EDGE, slow, quick):
        with open_device(spec) as device:
            assert [at_load(device, mutant.to_bytes()) for mutant in made] == expected
    assert len(made) == 200 and expected.count("data race") >= 50


def test_barriers_removed():
    builder = builder_with_slots()
    builder.emit("load", **LOAD)
    builder.emit("barrier")
    builder.emit("vunary", **COPY)
    builder.emit("barrier")
    builder.emit("store", **STORE | {"src": 4096})
    stream = builder.finish()
    at = [at for at, ins, _, _ in stream.decode() if ins.name == "barrier"]
    with open_device(programs.EDGE) as device:
        assert at_load(device, stream.to_bytes()) == Judge(stream).verdict(stream) == "ok"
        for mutant in (without(stream, offset, 4) for offset in at):
            assert at_load(device, mutant.to_bytes()) == Judge(stream).verdict(mutant) == "data race"
