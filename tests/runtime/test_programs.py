"""The C and C++ examples: they compile as their comments say, run, and refuse the wrong CPU."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from hetero_tvm import host
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.host import native
from hetero_tvm.runtime import checksum, elf, load
from hetero_tvm.runtime.cpuid import FEATURES
from tests.frontend.onnx.helpers import loop_of_shared_constants, text_model
from tests.runtime.conftest import ROWS, WIDTH, compile_manifest, make_manifest, weights
from tests.selection import thorough

SOURCES = Path(importlib.util.find_spec("hetero_tvm.runtime").origin).parent / "cpp"


@pytest.fixture(scope="module", params=["main.c", "main.cc"])
def program(request, tmp_path_factory):
    compiler = {"main.c": ["gcc", "-std=c11"], "main.cc": ["g++", "-std=c++17"]}[request.param]
    if not shutil.which(compiler[0]):
        pytest.skip(f"needs {compiler[0]}")
    site = Path(importlib.util.find_spec("tvm").origin).parents[1]
    tvm, ffi = site / "tvm/lib", site / "tvm_ffi"
    binary = tmp_path_factory.mktemp("program") / "main"
    command = [
        *compiler,
        *native.sanitizer_options(),
        "-O2",
        "-Wall",
        "-Werror",
        str(SOURCES / request.param),
        "-o",
        str(binary),
    ]
    command += [f"-I{ffi}/include", f"-L{tvm}", f"-L{ffi}/lib", "-Wl,--no-as-needed", "-ltvm_runtime"]
    command += ["-ltvm_runtime_extra", "-ltvm_ffi", "-ldl", f"-Wl,-rpath,{tvm}:{ffi}/lib"]
    subprocess.run(command, check=True)
    return binary


def run(program, *args, **variables):
    env = {**os.environ, "HETERO_TVM_THREADS": "2", **variables}
    return subprocess.run([program, *map(str, args)], capture_output=True, text=True, timeout=1800, env=env)


def test_it_computes_what_python_computes(program, mlp, many):
    ramp = (np.arange(ROWS * WIDTH, dtype="float32") * np.float32(1e-3)).reshape(ROWS, WIDTH)
    result = run(program, mlp, f"f32:{ROWS}x{WIDTH}")
    assert result.returncode == 0, result.stderr
    assert float(result.stdout.split()[3]) == pytest.approx(float(load(mlp)(ramp).sum()), rel=1e-3)
    ids = (np.arange(ROWS * WIDTH) % 2).reshape(ROWS, WIDTH)
    result = run(program, many, f"f32:{ROWS}x{WIDTH}", f"i64:{ROWS}x{WIDTH}")
    assert result.returncode == 0, result.stderr
    assert float(result.stdout.split()[3]) == pytest.approx(float(load(many)(ramp, ids)[0].sum()), rel=1e-3)


def test_errors_are_messages(program, mlp, tmp_path):
    result = run(program, mlp, "f32:8x63")
    assert result.returncode == 1 and "63" in result.stderr
    absent = sorted(set(FEATURES) - host.cpu_features())
    if absent:
        path = compile_manifest(tmp_path, make_manifest(isa=(absent[0],), cpu="futurecore"))
        result = run(program, path)
        assert result.returncode == 1
        assert "built for futurecore" in result.stderr and absent[0] in result.stderr


def test_a_damaged_library_is_a_message_and_never_loaded(program, mlp, tmp_path):
    whole = mlp.read_bytes()
    at = whole.find(weights().tobytes()[:64]) + 40
    section, size = elf.section(whole, checksum.SECTION.encode())
    damages = {
        "weights": whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :],
        "code": whole[:4096] + bytes(64) + whole[4160:],
        "no checksum": whole[:section] + bytes(size) + whole[section + size :],
        "cut off": whole[: len(whole) // 2],
        "header only": whole[:64],
        "empty": b"",
        "text": b"not a library " * 20,
    }
    for name, data in damages.items():
        path = tmp_path / f"{name}.so"
        path.write_bytes(data)
        result = run(program, path, f"f32:{ROWS}x{WIDTH}")
        assert result.returncode == 1 and result.stderr.startswith(f"error: {path}: it is"), (
            name,
            result.stderr,
        )
        if name == "weights":
            env = {"HETERO_TVM_VERIFY": "0"}
            assert run(program, path, f"f32:{ROWS}x{WIDTH}", **env).returncode == 0
    stripped = tmp_path / "stripped.so"
    subprocess.run(["strip", "--strip-all", mlp, "-o", stripped], check=True)
    assert run(program, stripped, f"f32:{ROWS}x{WIDTH}").returncode == 0


@pytest.mark.thorough
def test_a_loop_has_its_constants_where_it_shares_one_with_what_is_around_it(program, tmp_path):
    """A program asks for no constants beforehand: each function gets its own when it is called."""
    width = 32
    model = loop_of_shared_constants(width)
    library = build_model(optimize_model(import_model(model)), use_shipped=False).export(tmp_path)
    ramp = (np.arange(width * width, dtype="float32") * np.float32(1e-3)).reshape(width, width)
    result = run(program, library, f"f32:{width}x{width}")
    assert result.returncode == 0, result.stderr
    (truth,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": ramp})
    assert float(result.stdout.split()[3]) == pytest.approx(float(truth.sum()), rel=1e-4)


def test_an_index_out_of_range_is_a_message(program, tmp_path):
    text = "g (float[1, 3] x, int64[1, 9] i) => (float[1, 9, 3] y) { y = Gather(x, i) }"
    model = text_model(text, "victim")
    library = build_model(optimize_model(import_model(model))).export(tmp_path)
    result = run(program, library, "f32:1x3", "i64:1x9")  # indices are 0 and 1
    assert result.returncode == 1
    assert "victim: an index lies outside [-1, 1)" in result.stderr


@pytest.mark.parametrize("value", [*thorough(["-3"]), "abc", *thorough(["0"]), "100000"])
def test_a_senseless_number_of_threads_is_a_message(program, mlp, value):
    result = run(program, mlp, f"f32:{ROWS}x{WIDTH}", HETERO_TVM_THREADS=value)
    assert result.returncode == 1 and f"HETERO_TVM_THREADS='{value}'" in result.stderr
