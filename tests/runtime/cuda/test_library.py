"""Libraries on a GPU: results that stay there, streams, and what is refused; on the emulated GPU."""

import concurrent.futures
import gc
import importlib.util
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import InputError, LibraryError
from hetero_tvm.host.tvm import tvm
from hetero_tvm.reference import sample_inputs
from hetero_tvm.runtime import load
from hetero_tvm.runtime.cuda import cudart
from hetero_tvm.runtime.cuda import devices as cuda_runtime
from tests.frontend.onnx.helpers import text_model
from tests.selection import thorough


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    if cuda_runtime.missing_driver() is None:
        pytest.skip("this machine has an NVIDIA driver: the stand-in for it is not used")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cuda_runtime.EMULATE_VARIABLE, "1")
        folder = tmp_path_factory.mktemp("cuda")
        plan = optimize_model(import_model("zoo:minilm-l6-tiny"), target="cuda:sm_80")
        yield build_model(plan, logs=folder / "logs", use_shipped=False).export(folder)


@pytest.fixture
def net(path):
    return load(path)


@pytest.fixture(scope="module")
def calls(path):
    """Inputs and what a plain call makes of them."""
    model, plain = import_model("zoo:minilm-l6-tiny"), load(path)
    inputs = [list(sample_inputs(model, seed).values()) for seed in range(5)]
    return [(arrays, plain(*arrays)) for arrays in inputs]


@pytest.fixture
def late(monkeypatch):
    """Streams do their work as late as they may."""
    monkeypatch.setenv("HETERO_TVM_CUDA_EMULATE_LATE", "1")


def on_gpu(arrays):
    return [tvm.runtime.tensor(array, tvm.cuda(0)) for array in arrays]


@pytest.mark.thorough
def test_results_on_the_device_equal_those_of_a_plain_call(net):
    model = import_model("zoo:minilm-l6-tiny")
    for seed in range(2):
        arrays = list(sample_inputs(model, seed).values())
        expected = net(*arrays).copy()
        for stream in (None, 0):
            (result,) = net.on_device(*on_gpu(arrays), stream=stream)
            assert result.device.dlpack_device_type() == 2
            host = tvm.runtime.empty(tuple(result.shape), str(result.dtype))
            tvm.get_global_func("runtime.TVMTensorCopyFromTo")(result, host)
            np.testing.assert_array_equal(host.numpy(), expected)


@pytest.mark.thorough
def test_everything_wrong_with_device_tensors_is_listed(net):
    arrays = list(sample_inputs(import_model("zoo:minilm-l6-tiny"), 0).values())
    here = tvm.runtime.tensor(arrays[0])  # not on the GPU
    short, wrong = on_gpu([arrays[1][:, :5], arrays[2].astype("int32")])
    with pytest.raises(InputError) as caught:
        net.on_device(here, short, wrong)
    text = "\n".join(caught.value.problems)
    assert "not on cuda:0" in text and "the shape is (1, 5)" in text and "the dtype is int32" in text
    with pytest.raises(InputError, match="wrong inputs") as caught:
        net.on_device(*on_gpu(arrays[:2]))
    assert "2 tensors given" in caught.value.problems
    with pytest.raises(InputError, match="no DLPack tensor"):
        net.on_device("x", "y", "z")


def test_a_device_that_is_not_there(net):
    with pytest.raises(LibraryError, match="there is no GPU 3, only 1"):
        load(net.path, device=3)
    assert "emulation" in repr(net) and net.arch == "sm_80"


def host(tensor):
    copy = tvm.runtime.empty(tuple(tensor.shape), str(tensor.dtype))
    tvm.get_global_func("runtime.TVMTensorCopyFromTo")(tensor, copy)
    return copy.numpy()


# --- CUDA graphs ---------------------------------------------------------------------------------
def test_graphs_can_be_switched_off(path, calls, monkeypatch):
    arrays, expected = calls[0]
    assert load(path).cuda_graph == "on"
    off = load(path, cuda_graph=False)
    assert off.cuda_graph == "off: as asked"
    np.testing.assert_array_equal(off(*arrays), expected)
    monkeypatch.setenv("HETERO_TVM_CUDA_GRAPH", "0")
    assert load(path).cuda_graph == "off: as asked" and load(path, cuda_graph=True).cuda_graph == "on"


def test_a_device_that_cannot_capture_runs_kernel_after_kernel(path, calls, monkeypatch):
    monkeypatch.setenv("HETERO_TVM_CUDA_EMULATE_NO_CAPTURE", "1")
    net = load(path)
    with pytest.warns(RuntimeWarning, match="without CUDA graphs: .*Capture"):
        np.testing.assert_array_equal(net(*calls[0][0]), calls[0][1])
    assert net.cuda_graph.startswith("off: ") and "Capture" in net.cuda_graph
    for arrays, expected in calls:
        np.testing.assert_array_equal(net(*arrays), expected)


# --- calls in flight -----------------------------------------------------------------------------
def test_submitted_calls_give_what_plain_ones_give(net, calls, late):
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 1, 3]):
        pending = []
        for arrays, _ in calls:
            mine = [array.copy() for array in arrays]
            pending.append(net.submit(*mine))
            for array in mine:
                array.fill(0)  # the call has its own copy
        for index in order:
            np.testing.assert_array_equal(pending[index].wait(), calls[index][1])
            assert pending[index].wait() is pending[index].wait()


@pytest.fixture
def no_garbage():
    """Nothing is freed by the collector of garbage: freeing device memory waits for all streams."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("which", [*thorough(["_in"]), "_model"])
def test_a_missing_wait_between_streams_shows(net, calls, late, no_garbage, monkeypatch, which):
    """The emulation does late what may be late: without its waits the pipeline gives other numbers."""
    net.submit(*calls[0][0]).wait()
    pipeline = net._pipeline
    waiting = {"_in": pipeline._model, "_model": pipeline._out}[which]
    ids, *masks = calls[1][0]
    # Memory that nobody has written may hold what an earlier test computed: not of these ids.
    arrays = [(ids + 1 + ["_in", "_model"].index(which)) % 97, *masks]
    with monkeypatch.context() as patched:
        patched.setattr(waiting, "wait", lambda event: None)
        try:
            found = np.array(net.submit(*arrays).wait())
        except LibraryError as error:  # token ids of memory that nobody wrote yet lie outside of the table
            assert "an index lies outside" in str(error)
            return
    assert not np.array_equal(found, net(*arrays))


def test_calls_from_several_threads(net, calls, late):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda call: net(*call[0]), calls * 3))
    for result, (_, expected) in zip(results, calls * 3, strict=True):
        np.testing.assert_array_equal(result, expected)


def test_plain_and_device_calls_on_different_streams_share_no_buffer_at_once(net, calls, late):
    stream = cudart.Stream()
    pending = net.submit(*calls[0][0])
    (mine,) = net.on_device(*on_gpu(calls[1][0]), stream=stream.handle)
    other = net.submit(*calls[2][0])
    stream.synchronize()
    np.testing.assert_array_equal(host(mine), calls[1][1])
    np.testing.assert_array_equal(pending.wait(), calls[0][1])
    np.testing.assert_array_equal(other.wait(), calls[2][1])
    np.testing.assert_array_equal(host(mine), calls[1][1])  # it is the caller's


def test_what_is_wrong_with_submitted_arrays_is_listed(net, calls):
    with pytest.raises(InputError, match="wrong inputs"):
        net.submit(*calls[0][0][:1])


# --- other frameworks ----------------------------------------------------------------------------
class Foreign:
    """A tensor of another framework on the GPU."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__()

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def test_tensors_of_a_framework_in_and_out_without_copies(net, calls, monkeypatch):
    module = types.ModuleType("foreign")
    module.from_dlpack = lambda tensor: Foreign(tensor)
    monkeypatch.setitem(sys.modules, "foreign", module)
    monkeypatch.setattr(Foreign, "__module__", "foreign")
    tensors = [Foreign(tensor) for tensor in on_gpu(calls[0][0])]
    result = net(*tensors)  # by its inputs the call knows that nothing is to be copied
    assert isinstance(result, Foreign) and net._pipeline is None
    np.testing.assert_array_equal(host(result.tensor), calls[0][1])
    names = [spec.name for spec in net.signature.inputs]
    named = net(tensors[0], **dict(zip(names[1:], tensors[1:], strict=True)))
    np.testing.assert_array_equal(host(named.tensor), calls[0][1])
    with pytest.raises(InputError) as caught:
        net(tensors[0], **{names[0]: tensors[0]})
    assert "missing" in str(caught.value)


def test_the_current_stream_of_pytorch_is_taken(net, calls, monkeypatch):
    stream = cudart.Stream()
    torch = types.ModuleType("torch")
    torch.from_dlpack = lambda tensor: Foreign(tensor)
    current = types.SimpleNamespace(cuda_stream=stream.handle)
    torch.cuda = types.SimpleNamespace(current_stream=lambda device: current)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(Foreign, "__module__", "torch")
    monkeypatch.setenv("HETERO_TVM_CUDA_EMULATE_LATE", "1")
    tensors = [Foreign(tensor) for tensor in on_gpu(calls[0][0])]
    result = net(*tensors).tensor
    stream.synchronize()
    np.testing.assert_array_equal(host(result), calls[0][1])


# --- without Python ------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def program(tmp_path_factory):
    site = Path(importlib.util.find_spec("tvm").origin).parents[1]
    tvm_lib, ffi = site / "tvm/lib", site / "tvm_ffi"
    source = Path(importlib.util.find_spec("hetero_tvm.runtime").origin).parent / "cpp/cuda.cc"
    binary = tmp_path_factory.mktemp("program") / "cuda"
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Werror", str(source), "-o", str(binary)]
    command += [f"-I{ffi}/include", f"-L{tvm_lib}", f"-L{ffi}/lib", "-Wl,--no-as-needed", "-ltvm_runtime"]
    command += ["-ltvm_runtime_extra", "-ltvm_ffi", "-ldl", f"-Wl,-rpath,{tvm_lib}:{ffi}/lib"]
    subprocess.run(command, check=True)
    return binary


@pytest.mark.thorough
def test_from_cpp_with_the_runtime_only(program, path, net, tmp_path):
    for soname, library in cuda_runtime.standins().items():  # in place of a driver
        shutil.copyfile(library, tmp_path / soname)
    shapes = [spec.shape for spec in net.signature.inputs]
    texts = ["i64:" + "x".join(map(str, shape)) for shape in shapes]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PATH": "/nowhere"}
    done = subprocess.run([program, path, *texts], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    ramps = [(np.arange(np.prod(shape)) % 2).reshape(shape) for shape in shapes]
    assert done.stdout.startswith("sm_80: ")
    assert float(done.stdout.split()[4]) == pytest.approx(float(net(*ramps).sum()), abs=1e-3)
    environment["HETERO_TVM_CUDA_EMULATE_ARCH"] = "90"
    done = subprocess.run([program, path, *texts], capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and "machine code for sm_80; this GPU is sm_90" in done.stderr
    del environment["LD_LIBRARY_PATH"]
    done = subprocess.run([program, path, *texts], capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and "needed: an NVIDIA driver" in done.stderr


@pytest.mark.thorough
def test_an_index_out_of_range_is_a_message_in_cpp(program, path, tmp_path, monkeypatch):
    monkeypatch.setenv(cuda_runtime.EMULATE_VARIABLE, "1")
    text = "g (float[{0}, 3] x, int64[1, 9] i) => (float[1, 9, 3] y) {{ y = Gather(x, i) }}"
    for soname, library in cuda_runtime.standins().items():  # in place of a driver
        shutil.copyfile(library, tmp_path / soname)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    for rows, code in ((2, 0), (1, 1)):  # indices are 0 and 1
        plan = optimize_model(import_model(text_model(text.format(rows), "victim")), "cuda:sm_80")
        library = build_model(plan, use_shipped=False).export(tmp_path / str(rows))
        command = [program, library, f"f32:{rows}x3", "i64:1x9"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == code, done.stderr
    assert "victim: an index lies outside [-1, 1)" in done.stderr
