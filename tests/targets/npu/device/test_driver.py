"""The driver interface: handles and memory, misuse, and drivers of others."""

import dataclasses
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from hetero_tvm.host import native
from hetero_tvm.targets.npu.device import simulator
from hetero_tvm.targets.npu.device.driver import DriverError, open_device
from hetero_tvm.targets.npu.isa import native_header
from hetero_tvm.targets.npu.isa.stream import Stream
from tests.targets.npu.isa import programs
from tests.targets.npu.matmul import matmul


def test_the_native_table_is_that_of_the_declarations():
    assert native_header.path().read_text() == native_header.render()


def test_memory():
    with open_device(programs.EDGE) as device:
        first, second = device.alloc(100), device.alloc(1)
        assert first % 64 == second % 64 == 0 and first != second
        values = np.arange(25, dtype="f4")
        device.write(first, values)
        assert (device.read(first + 8, (23,), "f4") == values[2:]).all()
        for bad in (lambda: device.read(first, (101,), "u1"), lambda: device.write(first + 100, values)):
            with pytest.raises(DriverError, match="not within one allocation"):
                bad()
        with pytest.raises(DriverError, match="not all were written"):
            device.read(second, (1,), "u1")
        device.free(second)
        for bad in (lambda: device.free(second), lambda: device.free(first + 64)):
            with pytest.raises(DriverError, match="no allocation begins"):
                bad()
        with pytest.raises(DriverError, match="no device memory") as error:
            device.alloc(programs.EDGE.dram_bytes)
        assert error.value.status == "out of memory"


def test_bindings_are_checked():
    stream = matmul(32, 32, 32, (32, 32, 32))
    with open_device(programs.EDGE) as device, open_device(programs.EDGE) as other:
        program = device.load(stream.to_bytes())
        address = device.alloc(1 << 16)
        device.write(address, np.zeros(1 << 16, "u1"))
        good = [(address, 2048), (address + 2048, 2048), (address + 4096, 4096)]
        device.execute(program, good)
        for bindings, reason in [
            (good[:2], "3 slots, bound are 2"),
            ([(address, 2047), *good[1:]], "slot 0 .a. needs 2048 bytes, bound are 2047"),
            ([*good[:2], (address + (1 << 16) - 64, 4096)], "not within one allocation"),
            ([(address + 2, 2048), *good[1:]], "not a multiple of 32"),
            (None, "slots is null"),
        ]:
            with pytest.raises(DriverError, match=reason):
                device.execute(program, bindings)
        with pytest.raises(DriverError, match="not loaded on this device"):
            other.time(program)
        device.unload(program)
        with pytest.raises(DriverError, match="not loaded on this device"):
            device.time(program)


def test_configurations_are_checked():
    class Odd:
        def __init__(self, text):
            self.text = text

        def to_config(self):
            return self.text

    good = programs.EDGE.to_config()
    for text, reason in [
        (good.replace("events=32\n", ""), "events is missing"),
        (good + "color=3\n", "unknown key color"),
        (good + "events=3\n", "given twice"),
        (good.replace("events=32", "events=many"), "events=many is out of range"),
        (good.replace("alignment=32", "alignment=48"), "power of two"),
    ]:
        with pytest.raises(DriverError, match=reason):
            open_device(Odd(text))


def test_an_empty_program_takes_no_time():
    with open_device(programs.EDGE) as device:
        run = device.run(device.load(Stream().to_bytes()), {})
        assert run.counters.cycles == 0 and run.counters.energy_joule == 0


def test_devices_do_not_share():
    stream = matmul(64, 64, 32, (32, 32, 32))
    rng = np.random.default_rng(0)
    with open_device(programs.EDGE) as one, open_device(programs.MOBILE) as two:
        runs = []
        for device in (one, two, one):
            arrays = {name: rng.standard_normal((64, 32)).astype("f2") for name in ("a", "b")}
            run = device.run(device.load(stream.to_bytes()), arrays | {"c": ((64, 64), "f4")})
            expected = arrays["a"].astype("f4") @ arrays["b"].astype("f4").T
            assert np.allclose(run.outputs["c"], expected, atol=1e-4)
            runs.append(run)
    assert runs[0].counters == runs[2].counters != runs[1].counters


def test_devices_in_threads_at_once():
    """One device per thread, as the header allows: numbers and cycles are those of a thread alone, and
    each thread hears of its own failure."""
    stream = matmul(64, 64, 96, (32, 32, 32)).to_bytes()
    rng = np.random.default_rng(1)
    arrays = {name: rng.standard_normal((64, 96)).astype("f2") for name in "ab"} | {"c": ((64, 64), "f4")}
    specs = [programs.EDGE, programs.MOBILE] * 2
    alone = []
    for spec in specs:
        with open_device(spec) as device:
            alone.append(device.run(device.load(stream), arrays))
    problems = []

    def work(number):
        for _ in range(15):
            with open_device(specs[number]) as device:
                run = device.run(device.load(stream), arrays)
                if run.counters != alone[number].counters:
                    problems.append("counters")
                if not np.array_equal(run.outputs["c"], alone[number].outputs["c"]):
                    problems.append("numbers")
                try:
                    device.free(1000 + number)
                except DriverError as error:
                    if str(1000 + number) not in str(error):
                        problems.append(str(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(specs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


# --- linking and other drivers -------------------------------------------------------------------

MODEL = r"""
#include <cstdio>
#include "hnpu_loader.h"
// What an exported model does: it knows nothing but the header.
extern "C" const char* describe(const char* config) {
  static char text[4096];
  const char* problem = nullptr;
  const hnpu_driver_table* driver = hnpu_driver(&problem);
  if (!driver) { std::snprintf(text, sizeof text, "none: %s", problem); return text; }
  hnpu_device* device = nullptr;
  hnpu_capabilities_t c{};
  if (driver->open(config, &device) != HNPU_OK || driver->capabilities(device, &c) != HNPU_OK)
    std::snprintf(text, sizeof text, "failed: %s", driver->last_error());
  else
    std::snprintf(text, sizeof text, "lanes %u", c.vector_lanes);
  driver->close(device);
  return text;
}
"""

VENDOR = r"""
#define HNPU_API __attribute__((visibility("default")))
#include "hnpu.h"
struct hnpu_device { int unused; };
static hnpu_device the_device;
extern "C" {
uint32_t hnpu_abi_version(void) { return HNPU_ABI_VERSION + SHIFT; }
hnpu_status hnpu_open(const char*, hnpu_device** d) { *d = &the_device; return HNPU_OK; }
void hnpu_close(hnpu_device*) {}
hnpu_status hnpu_capabilities(hnpu_device*, hnpu_capabilities_t* c) {
  c->vector_lanes = 4242;
  return HNPU_OK;
}
hnpu_status hnpu_alloc(hnpu_device*, uint64_t, uint64_t*) { return HNPU_ERROR_MEMORY; }
hnpu_status hnpu_free(hnpu_device*, uint64_t) { return HNPU_OK; }
hnpu_status hnpu_copy_to_device(hnpu_device*, uint64_t, const void*, uint64_t) { return HNPU_OK; }
hnpu_status hnpu_copy_from_device(hnpu_device*, void*, uint64_t, uint64_t) { return HNPU_OK; }
hnpu_status hnpu_load(hnpu_device*, const void*, uint64_t, hnpu_program**) { return HNPU_ERROR_UNSUPPORTED; }
void hnpu_unload(hnpu_device*, hnpu_program*) {}
hnpu_status hnpu_submit(hnpu_device*, hnpu_program*, const hnpu_binding*, uint32_t, uint32_t) {
  return HNPU_OK;
}
hnpu_status hnpu_wait(hnpu_device*) { return HNPU_OK; }
hnpu_status hnpu_read_counters(hnpu_device*, hnpu_counters*) { return HNPU_OK; }
hnpu_status hnpu_read_trace(hnpu_device*, hnpu_trace_entry*, uint64_t, uint64_t*) {
  return HNPU_OK;
}
const char* hnpu_last_error(void) { return "the vendor says no"; }
#ifndef INCOMPLETE
const char* hnpu_status_name(hnpu_status) { return "vendor"; }
#endif
}
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Compiles C++ text to a shared library beside the headers of the driver."""
    folder = tmp_path_factory.mktemp("driver")

    def compile_text(name, text, *flags):
        source, library = folder / f"{name}.cc", folder / f"{name}.so"
        source.write_text(text)
        command = [*native.find_compiler(), "-std=c++17", "-shared", "-fPIC", f"-I{simulator.folder()}"]
        subprocess.run([*command, str(source), *flags, "-o", str(library)], check=True)
        return library

    return compile_text


@pytest.fixture(scope="module")
def model(build):
    return build("model", MODEL, str(simulator.object_file()), "-ldl", "-Wl,--no-undefined")


STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{simulator.folder()}"]


@pytest.mark.parametrize("dialect", ["gcc -x c -std=c99", "g++ -x c++ -std=c++17"])
@pytest.mark.parametrize("header", ["hnpu.h", "hnpu_loader.h"])
def test_the_headers_are_plain_c_and_cpp(dialect, header):
    if not shutil.which(dialect.split()[0]):
        pytest.skip(f"needs {dialect.split()[0]}")
    command = [*dialect.split(), *STRICT, "-fsyntax-only", str(simulator.folder() / header)]
    subprocess.run(command, check=True)


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_from_plain_c(tmp_path):
    config, stream, binary = (tmp_path / name for name in ("config", "stream", "program"))
    config.write_text(programs.EDGE.to_config())
    stream.write_bytes(programs.exponentials().to_bytes())
    library = simulator.shared_library()
    source = Path(__file__).with_name("plain_c.c")
    link = [str(library), f"-Wl,-rpath,{library.parent}", "-o", str(binary)]
    subprocess.run(["gcc", "-std=c99", *STRICT, str(source), *link], check=True)
    done = subprocess.run([binary, config, stream], capture_output=True, text=True)
    # e = 0x4170 in float16.  Load 4 + 100 + 8, barrier 4, exp 4 + 8, barrier 4, store 4 + 8 + 100.
    assert (done.stdout, done.returncode) == ("32 lanes, 4170, 244 cycles, 3 entries\n", 0)


DESCRIBE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.describe.restype = ctypes.c_char_p
print(library.describe(sys.stdin.buffer.read()).decode())
"""


def describe(model, driver=None):
    environment = {k: v for k, v in os.environ.items() if k != "HNPU_DRIVER"}
    if driver is not None:
        environment["HNPU_DRIVER"] = str(driver)
    config = programs.EDGE.to_config().encode()
    command = [sys.executable, "-c", DESCRIBE, str(model)]
    done = subprocess.run(command, input=config, env=environment, capture_output=True, check=True)
    return done.stdout.decode()


def test_a_model_carries_the_simulator(model):
    assert describe(model) == "lanes 32\n"
    # Nothing of it is visible to other libraries of the process.
    listed = subprocess.run(["nm", "-D", "--defined-only", str(model)], capture_output=True, text=True)
    assert "describe" in listed.stdout and "hnpu" not in listed.stdout


def test_a_vendor_driver_takes_its_place(model, build):
    vendor = build("vendor", VENDOR, "-DSHIFT=0")
    assert describe(model, vendor) == "lanes 4242\n"
    assert describe(model, simulator.shared_library()) == "lanes 32\n"  # the simulator is a driver too
    assert describe(model, "") == "lanes 32\n"


def test_drivers_that_cannot_serve(model, build, tmp_path):
    assert "version 3 of the driver interface, this model needs version 2" in describe(
        model, build("newer", VENDOR, "-DSHIFT=1")
    )
    assert "it has no function hnpu_status_name" in describe(
        model, build("incomplete", VENDOR, "-DSHIFT=0", "-DINCOMPLETE")
    )
    missing = tmp_path / "none.so"
    assert f"HNPU_DRIVER={missing} cannot be used: " in describe(model, missing)


def test_python_takes_the_named_driver_too(build):
    code = """
from hetero_tvm.targets.npu.device.driver import DriverError, open_device
from hetero_tvm.machines.npu.spec import NPUSpec
try:
    open_device(NPUSpec.preset("edge")).alloc(1)
except DriverError as error:
    print(error, error.status)
"""
    vendor = build("vendor2", VENDOR, "-DSHIFT=0")
    environment = os.environ | {"HNPU_DRIVER": str(vendor)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout == "the vendor says no vendor\n"


def test_the_text_of_a_configuration_is_complete():
    spec = dataclasses.replace(programs.MOBILE, dram_latency=7, name="x y")
    with open_device(spec) as device:
        assert device.time(device.load(Stream().to_bytes())).counters.cycles == 0
