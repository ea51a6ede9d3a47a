"""Files that can be opened, and those that are refused before any of their code runs."""

import copy
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest

from hetero_tvm import host
from hetero_tvm.errors import LibraryError, UsageError
from hetero_tvm.runtime import load
from hetero_tvm.runtime.cpuid import FEATURES
from tests.runtime.conftest import compile_manifest, expected, make_manifest, sample


def test_a_folder_means_its_only_library(mlp):
    x = sample()
    np.testing.assert_allclose(load(mlp.parent)(x), expected(x), rtol=1e-4, atol=1e-4)


def test_a_folder_with_several_means_model_so(tmp_path, mlp):
    shutil.copy(mlp, tmp_path / "a.so")
    shutil.copy(mlp, tmp_path / "b.so")
    with pytest.raises(LibraryError, match=r"holds 2 libraries[\s\S]*a\.so[\s\S]*b\.so"):
        load(tmp_path)
    shutil.copy(mlp, tmp_path / "model.so")
    assert load(tmp_path).path.name == "model.so"


def test_missing_and_foreign_files_are_refused(tmp_path):
    with pytest.raises(LibraryError, match="does not exist"):
        load(tmp_path / "no.so")
    with pytest.raises(LibraryError, match="no .so in"):
        load(tmp_path)
    (tmp_path / "bert.onnx").write_text("a model")
    with pytest.raises(LibraryError, match=f"did you mean {tmp_path}/bert.onnx?"):
        load(tmp_path)
    for model in (str(tmp_path / "bert.onnx"), "zoo:minilm-l6"):
        with pytest.raises(LibraryError, match=rf"is a model, and a library[\s\S]*build {model} --out out"):
            load(model)
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text("{}")
    with pytest.raises(LibraryError, match=r"llama is a checkpoint[\s\S]*build .*llama --out out"):
        load(tmp_path / "llama")
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "model.so").write_text("hello")
    with pytest.raises(LibraryError, match=f"did you mean {tmp_path}/bert?"):
        load(tmp_path)
    (tmp_path / "text.so").write_text("hello" * 30)
    with pytest.raises(LibraryError, match="not a shared library"):
        load(tmp_path / "text.so")


def test_another_architecture_is_named(tmp_path, mlp):
    data = bytearray(mlp.read_bytes())
    data[18:20] = (243).to_bytes(2, "little")
    (tmp_path / "riscv.so").write_bytes(data)
    with pytest.raises(LibraryError, match="built for riscv64"):
        load(tmp_path / "riscv.so")


def test_a_cpu_without_the_features_is_told_before_loading(tmp_path):
    absent = sorted(set(FEATURES) - host.cpu_features())
    if not absent:
        pytest.skip("this CPU has everything")
    path = compile_manifest(tmp_path, make_manifest(isa=("sse2", absent[0]), cpu="futurecore"))
    with pytest.raises(LibraryError, match=f"built for futurecore[\\s\\S]*missing CPU feature: {absent[0]}"):
        load(path)
    with open("/proc/self/maps") as maps:
        assert str(path) not in maps.read()


_WITH_SMALL_SIGNAL_STACK = """
import ctypes, sys
class Stack(ctypes.Structure):
    _fields_ = [("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
memory = ctypes.create_string_buffer(8192)  # room for the vectors of AVX-512, not for 8 KB of tiles
stack = Stack(ctypes.addressof(memory), 0, 8192)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
message = ctypes.create_string_buffer(4096)
ctypes.CDLL(sys.argv[1]).hetero_tvm_check_cpu(message, ctypes.c_size_t(4096))
print(message.value.decode())
from hetero_tvm.errors import LibraryError
from hetero_tvm.runtime import load
try:
    load(sys.argv[1])
except LibraryError as error:
    print(error)
"""


def test_a_signal_stack_too_small_for_tiles_is_no_missing_feature(tmp_path):
    if "amx_tile" not in host.cpu_features():
        pytest.skip("this CPU has no tiles")
    path = compile_manifest(tmp_path, make_manifest(isa=("avx2", "amx_tile"), cpu="sapphirerapids"))
    run = subprocess.run(
        [sys.executable, "-c", _WITH_SMALL_SIGNAL_STACK, str(path)], capture_output=True, text=True
    )
    assert "lacks: amx_tile (a signal stack is too small for tiles)" in run.stdout, run.stdout + run.stderr
    assert "with AMX, which this process may not use" in run.stdout, run.stdout + run.stderr
    assert "sigaltstack" in run.stdout and "missing CPU feature" not in run.stdout


def test_another_release_of_tvm_is_refused_with_the_pip_command(tmp_path):
    path = compile_manifest(tmp_path, make_manifest(versions={"tvm": "0.21.0", "tvm_ffi": "0.1.0"}))
    with pytest.raises(LibraryError, match=r"pip install apache-tvm==0\.21\.0"):
        load(path)


def test_a_changed_file_is_refused_on_request(tmp_path, mlp, monkeypatch):
    path = tmp_path / "mlp.so"
    shutil.copy(mlp, path)
    shutil.copy(mlp.with_suffix(".manifest.json"), tmp_path)
    load(path, verify=True)
    # Replaced, not written over: the bytes of a loaded library must stay as they are.
    changed = tmp_path / "changed"
    changed.write_bytes(path.read_bytes() + b"\0")
    changed.replace(path)
    load(path)
    with pytest.raises(LibraryError, match="not the file that was exported"):
        load(path, verify=True)
    monkeypatch.setenv("HETERO_TVM_VERIFY", "1")
    with pytest.raises(LibraryError, match="not the file that was exported"):
        load(path)


def test_a_library_that_replaces_a_loaded_one_is_really_loaded(tmp_path, mlp, wide):
    path = tmp_path / "model.so"
    shutil.copy(mlp, path)
    first = load(path)
    path.unlink()
    shutil.copy(wide, path)
    second = load(path)
    assert second(np.zeros((64, 256), "float32")).sum() == 64 * 256
    np.testing.assert_allclose(first(sample()), expected(sample()), rtol=1e-4, atol=1e-4)


def test_impossible_threads(mlp):
    with pytest.raises(UsageError, match="at least 1"):
        load(mlp, threads=0)
    with pytest.raises(UsageError, match="not available"):
        load(mlp, pin=[100_000])


@pytest.mark.parametrize("copied", [lambda net: pickle.loads(pickle.dumps(net)), copy.deepcopy])
def test_a_pickle_loads_the_file_again(mlp, copied):
    net = load(mlp, threads=1, pin=False)
    other = copied(net)
    assert other is not net and (other.path, other.threads, other.cores) == (net.path, 1, None)
    np.testing.assert_array_equal(other(sample()), net(sample()))


def test_a_pickle_whose_file_is_gone(tmp_path, mlp):
    moved = shutil.copy(mlp, tmp_path / "moved.so")
    pickled = pickle.dumps(load(moved))
    (tmp_path / "moved.so").unlink()
    with pytest.raises(LibraryError, match="moved.so does not exist"):
        pickle.loads(pickled)
