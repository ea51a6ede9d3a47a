"""Exported NPU libraries: in fresh processes, from C and C++, in threads, and behind a vendor's driver."""

import functools
import importlib.util
import os
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm import api
from hetero_tvm.host import native
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.reference import sample_inputs
from hetero_tvm.targets.npu.__main__ import main as disassembler
from hetero_tvm.targets.npu.device import simulator
from hetero_tvm.targets.npu.isa.assembler import assemble
from tests.selection import thorough
from tests.targets.npu.matmul import matmul

HERE = Path(__file__).parent
RUNTIME = Path(importlib.util.find_spec("hetero_tvm.runtime").origin).parent
CALLS = 3


def exported(folder, name, target):
    model = api.build_model(api.optimize_model(api.import_model(f"zoo:{name}"), target), use_shipped=False)
    inputs = sample_inputs(model.optimized.model)
    return model.export(folder / f"{name}.so"), inputs, model.run(inputs)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """(library, inputs, outputs as the compiler's process has them)"""
    return exported(tmp_path_factory.mktemp("bert"), "minilm-l6-tiny", "npu:edge")


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("net"), "mobilenetv2-tiny", "npu:datacenter")


# --- a fresh process ----------------------------------------------------------------------------

RUN = f"""
import sys
import numpy as np
import hetero_tvm
net = hetero_tvm.load(sys.argv[1])
with np.load(sys.argv[2]) as file:
    inputs = dict(file)
for _ in range({CALLS}):
    result = net(**inputs)
np.savez(sys.argv[3], *(result if isinstance(result, tuple) else [result]))
loaded = open("/proc/self/maps").read()
assert "libtvm_runtime.so" in loaded and "libtvm_compiler" not in loaded and "tvm" not in sys.modules
"""


def without_drivers():
    return {k: v for k, v in os.environ.items() if not k.startswith(("HNPU_", "VENDOR_"))}


def fresh(case, folder, **variables):
    """Runs the library in a process of its own: the process, and its outputs."""
    library, inputs, _ = case
    np.savez(folder / "inputs.npz", **inputs)
    out = folder / "outputs.npz"
    out.unlink(missing_ok=True)
    environment = without_drivers() | {name: str(value) for name, value in variables.items()}
    command = [sys.executable, "-c", RUN, str(library), str(folder / "inputs.npz"), str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    outputs = []
    if out.exists():
        with np.load(out) as file:
            outputs = [file[name] for name in file.files]
    return done, outputs


def same(case, outputs):
    return len(outputs) == len(case[2]) and all(map(np.array_equal, outputs, case[2]))


@pytest.mark.thorough
def test_a_fresh_process_needs_only_the_runtime(bert, tmp_path):
    done, outputs = fresh(bert, tmp_path)
    assert done.returncode == 0, done.stderr
    assert same(bert, outputs)


PROGRAMS = {"main.c": "gcc -std=c11", "main.cc": "g++ -std=c++17"}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Compiles one of the examples for those who link without Python."""

    @functools.cache
    def build(source):
        compiler = PROGRAMS[source].split()
        if not shutil.which(compiler[0]):
            pytest.skip(f"needs {compiler[0]}")
        site = Path(importlib.util.find_spec("tvm").origin).parents[1]
        tvm, ffi = site / "tvm/lib", site / "tvm_ffi"
        binary = tmp_path_factory.mktemp("program") / "main"
        command = [*compiler, "-O0", str(RUNTIME / "cpp" / source), "-o", str(binary), f"-I{ffi}/include"]
        command += [f"-L{tvm}", f"-L{ffi}/lib", "-Wl,--no-as-needed", "-ltvm_runtime", "-ltvm_runtime_extra"]
        subprocess.run([*command, "-ltvm_ffi", "-ldl", f"-Wl,-rpath,{tvm}:{ffi}/lib"], check=True)
        return binary

    return build


def without_python(binary, case, **variables):
    """The example program on a library with one float32 input."""
    library, inputs, _ = case
    (array,) = inputs.values()
    environment = without_drivers() | {"TVM_NUM_THREADS": "1", "TVM_BIND_THREADS": "0"}
    environment |= {name: str(value) for name, value in variables.items()}
    arguments = [str(binary), str(library), "f32:" + "x".join(map(str, array.shape))]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=1800, env=environment)


def sum_of(done):
    assert done.returncode == 0, done.stderr
    return float(done.stdout.split()[3])


@pytest.mark.thorough
@pytest.mark.parametrize("source", PROGRAMS)
def test_from_c_and_cpp(net, program, source):
    library, inputs, _ = net
    ((name, array),) = inputs.items()
    ramp = (np.arange(array.size, dtype="float32") * np.float32(1e-3)).reshape(array.shape)
    expected = float(hetero_tvm.load(library)(**{name: ramp}).sum())
    done = without_python(program(source), net)
    assert sum_of(done) == pytest.approx(expected, rel=1e-3, abs=1e-3)
    done = without_python(program(source), net, HNPU_DRIVER="/nowhere/driver.so")
    assert done.returncode == 1 and "HNPU_DRIVER=/nowhere/driver.so cannot be used" in done.stderr


# --- a vendor's driver ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vendor(tmp_path_factory):
    """Compiles the vendor's driver with flags."""
    folder = tmp_path_factory.mktemp("vendor")

    @functools.cache
    def build(name, *flags):
        library = folder / f"{name}.so"
        command = [*native.find_compiler(), "-std=c++17", "-O0", "-shared", "-fPIC", *flags]
        command += [f"-I{simulator.folder()}", str(HERE / "vendor_driver.cc"), "-o", str(library), "-ldl"]
        subprocess.run(command, check=True)
        return {"HNPU_DRIVER": library, "VENDOR_SIMULATOR": simulator.shared_library()}

    return build


def counted(done):
    lines = [line.split() for line in done.stderr.splitlines() if line.startswith("vendor: ")]
    return {name: int(count) for _, name, count in lines}


@pytest.mark.thorough
def test_a_vendor_driver_serves_every_call(net, program, vendor):
    binary = program("main.cc")
    expected = sum_of(without_python(binary, net))
    done = without_python(binary, net, **vendor("good"))
    assert sum_of(done) == expected
    calls = counted(done)
    regions, runs = calls["hnpu_load"], calls["hnpu_submit"] // calls["hnpu_load"]
    assert calls["hnpu_open"] == calls["hnpu_capabilities"] == 1 and regions >= 1 and runs > 1
    assert calls["hnpu_submit"] == calls["hnpu_wait"] == runs * regions
    assert calls["hnpu_copy_to_device"] == (1 + runs) * regions  # the weights once, the input every time
    assert calls["hnpu_copy_from_device"] == runs * regions
    assert calls["hnpu_alloc"] == 4 * regions  # weights, workspace, input, output


@pytest.mark.thorough
def test_drivers_that_cannot_serve_are_refused_by_name(net, program, vendor, tmp_path):
    for variables, reason in [
        ({"HNPU_DRIVER": tmp_path / "none.so"}, "none.so cannot be used: "),
        (vendor("newer", "-DVERSION=99"), "it has version 99 of the driver interface, this model needs"),
        (vendor("partial", "-DWITHOUT_WAIT"), "it has no function hnpu_wait"),
    ]:
        done = without_python(program("main.c"), net, **variables)
        assert done.returncode == 1 and reason in done.stderr


@pytest.mark.thorough
def test_python_gets_the_drivers_reason(net, tmp_path):
    done, outputs = fresh(net, tmp_path, HNPU_DRIVER=tmp_path / "none.so")
    assert done.returncode == 1 and not outputs
    assert "LibraryError" in done.stderr and "none.so cannot be used: " in done.stderr


@pytest.mark.parametrize(
    "function,doing",
    [
        ("hnpu_open", "opening the device"),
        *thorough([("hnpu_alloc", "allocating device memory"), ("hnpu_load", "loading the command stream")]),
        ("hnpu_submit", "submitting"),
        ("hnpu_wait", "running"),
        *thorough([("hnpu_copy_from_device", "copying an output")]),
    ],
)
def test_failures_of_the_hardware_say_what_was_going_on(net, program, vendor, function, doing):
    done = without_python(program("main.c"), net, VENDOR_FAILS=function, **vendor("good"))
    assert done.returncode == 1
    assert f"{doing}: driver failure: the vendor's chip is on fire" in done.stderr


def test_a_device_that_is_too_small_is_refused_with_all_that_it_lacks(net, program, vendor, tmp_path):
    config = tmp_path / "small.txt"
    config.write_text(NPUSpec.preset("edge").to_config().replace("l0a_kib=16", "l0a_kib=1"))
    done = without_python(program("main.c"), net, VENDOR_CONFIG=config, VENDOR_ISA=1, **vendor("good"))
    assert done.returncode == 1
    assert "the device cannot run this model: its command streams have version 2, " in done.stderr
    assert "the device takes version 7; it needs " in done.stderr
    assert "bytes of L0A, the device has 1024" in done.stderr
    assert "hnpu_alloc" not in counted(done)


# --- what is linked -----------------------------------------------------------------------------


def symbols(path, *flags):
    listed = subprocess.run(["nm", *flags, str(path)], capture_output=True, text=True, check=True)
    return [line.split()[-1] for line in listed.stdout.splitlines() if line.strip()]


@pytest.mark.thorough
def test_the_library_knows_nothing_but_the_header(bert, tmp_path):
    """The run-time part names no function of a driver but the table's; the library shows none of it."""
    library, _, _ = bert
    seen = symbols(library, "-D")
    assert not [name for name in seen if "hnpu" in name.lower() and not name.startswith("__tvm_ffi_hnpu_")]
    source = native.source_path("targets/npu/cpp/npu_region.cc")
    from hetero_tvm.targets.npu.regions.byoc import _headers

    command = [*native.find_compiler(), "-std=c++17", "-fPIC", "-fvisibility=hidden", "-c", str(source)]
    unit = tmp_path / "region.o"
    includes = [f"-I{folder}" for folder in (source.parent, *_headers())]
    subprocess.run([*command, *includes, "-o", str(unit)], check=True)
    wanted = [name for name in symbols(unit, "--undefined-only") if "hnpu" in name]
    assert wanted == ["hnpu_driver"]


def test_the_disassembler_reads_a_library(bert, tmp_path, capsys):
    library, _, _ = bert
    assert disassembler(["disasm", str(library)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("; stream 0: ") and "mmad #" in text and ".tag " in text
    stream = assemble(text)
    data = library.read_bytes()
    at = data.index(stream)  # the very bytes
    damaged = f"the stream at offset {at} of the library: offset 8: damaged"
    for bad, reason in [
        (data[: at + 50] + b"!" + data[at + 51 :], damaged),
        (data[: at + len(stream) - 4], damaged),
        (data[:at], "the library holds no command stream"),
    ]:
        (tmp_path / "bad.so").write_bytes(bad)
        assert disassembler(["disasm", str(tmp_path / "bad.so")]) == 1
        assert reason in capsys.readouterr().err


# --- one process --------------------------------------------------------------------------------


def test_several_libraries_and_threads_in_one_process(bert, net):
    nets = [(hetero_tvm.load(case[0]), case) for case in (bert, net, bert)]
    problems = []

    def work(library, case):
        for _ in range(4):
            result = library(**case[1])
            outputs = result if isinstance(result, tuple) else (result,)
            if not same(case, outputs):
                problems.append(library)

    threads = [threading.Thread(target=work, args=pair) for pair in nets * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def resident():
    """Resident memory of this process, bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.thorough
def test_many_runs_leave_nothing_behind(bert):
    library, inputs, _ = bert
    loaded = hetero_tvm.load(library)
    for _ in range(30):
        loaded(**inputs)
    growths = []
    for _ in range(3):  # a leak grows each time; huge pages that the kernel puts together do so once
        before = resident()
        for _ in range(300):  # a millisecond each; 4 kB of each would show
            loaded(**inputs)
        growths.append(resident() - before)
    assert min(growths) < 300 << 12


def test_many_devices_and_programs_leave_nothing_behind():
    from hetero_tvm.targets.npu.device.driver import open_device

    stream = matmul(32, 32, 32, (32, 32, 32)).to_bytes()
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((32, 32)).astype("f2") for name in "ab"} | {"c": ((32, 32), "f4")}

    def once():
        with open_device(NPUSpec.preset("edge")) as device:
            device.run(device.load(stream), arrays, trace=True)
            device.unload(device.load(stream))

    for _ in range(30):
        once()
    before = resident()
    for _ in range(500):
        once()
    assert resident() - before < 500 << 12
