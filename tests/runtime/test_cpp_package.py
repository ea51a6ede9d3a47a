"""Headers for C and C++: they compile without a warning, compute what Python does, refuse what is wrong."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.runtime import cmake_folder, load
from tests.runtime.conftest import ROWS, WIDTH, sample

FOLDER = Path(cmake_folder()).parent
FLAGS = ["-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
HOSTILE = r"""
#include "hetero_tvm.h"
/* Calls with arrays of float32 [rows, rows] at a place that is not aligned, and of a number of dimensions. */
int main(int count, char** arguments) {
  hetero_tvm_model* model = count < 4 ? NULL : hetero_tvm_open(arguments[1]);
  if (!model) return 2;
  static float data[256];
  hetero_tvm_array array;
  memset(&array, 0, sizeof array);
  array.data = (char*)data + 4;
  memcpy(array.dtype, "float32", 8);
  array.rank = atoi(arguments[2]);
  array.shape[0] = array.shape[1] = strtoll(arguments[3], NULL, 10);
  const int status = hetero_tvm_run(model, &array, 1);
  if (status) fprintf(stderr, "%s\n", hetero_tvm_error());
  hetero_tvm_close(model);
  return status;
}
"""
THREADS = r"""
#include <atomic>
#include <cstdio>
#include <thread>
#include "hetero_tvm.hpp"
// Threads that share a model: by the C++ class, whose results are compared, and by the functions of C.
int main(int, char** arguments) {
  hetero_tvm::Model shared(arguments[1]);
  hetero_tvm_model* plain = hetero_tvm_open(arguments[1]);
  const std::vector<hetero_tvm::Array> inputs = {hetero_tvm::Array::from_npy(arguments[2])};
  const hetero_tvm_array raw = inputs[0].raw();
  const auto wanted = shared(inputs);
  const size_t bytes = size_t(wanted[0].size()) * 4;
  std::atomic<int> other{0}, ran{0}, refused{0}, words{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        if (std::memcmp(shared(inputs)[0].raw().data, wanted[0].raw().data, bytes)) ++other;
        if (!hetero_tvm_run(plain, &raw, 1)) ++ran;
        else if (++refused; std::strstr(hetero_tvm_error(), "runs in another thread")) ++words;
      }
    });
  for (auto& thread : threads) thread.join();
  std::printf("%d %d %d %d\n", int(other), int(ran) > 0, int(ran) + int(refused), int(refused) - int(words));
  hetero_tvm_close(plain);
}
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """``run`` of C++ and ``plain`` of C, without CMake."""
    if not shutil.which("gcc") or not shutil.which("g++"):
        pytest.skip("needs gcc and g++")
    site = Path(importlib.util.find_spec("tvm").origin).parents[1]
    tvm, ffi = site / "tvm/lib", site / "tvm_ffi"
    folder = tmp_path_factory.mktemp("programs")
    example, hostile, threads = FOLDER / "example", folder / "hostile.c", folder / "threads.cc"
    hostile.write_text(HOSTILE)
    threads.write_text(THREADS)
    c, cxx = ["gcc", "-std=c11"], ["g++", "-std=c++17"]
    sources = ((cxx, example / "run.cc"), (c, example / "plain.c"), (c, hostile), (cxx, threads))
    for compiler, source in sources:
        command = [*compiler, *FLAGS, str(source), f"-I{FOLDER}/include"]
        command += ["-isystem", f"{ffi}/include", f"-L{tvm}", f"-L{ffi}/lib", "-Wl,--no-as-needed"]
        command += ["-ltvm_runtime", "-ltvm_runtime_extra", "-ltvm_ffi", "-ldl", "-pthread"]
        command += [f"-Wl,-rpath,{tvm}:{ffi}/lib", "-o", str(folder / source.stem)]
        subprocess.run(command, check=True)
    return folder


@pytest.fixture(scope="module")
def open_square(tmp_path_factory):
    """Library that takes the Relu of squares of 2 to 5 rows."""
    from tests.frontend.onnx.helpers import text_model

    source = text_model("g (float[n, n] a) => (float[n, n] y) { y = Relu(a) }")
    model = hetero_tvm.import_model(source, shapes={"a": (hetero_tvm.Span(2, 5), hetero_tvm.Span(2, 5))})
    path = tmp_path_factory.mktemp("open") / "square.so"
    hetero_tvm.build_model(hetero_tvm.optimize_model(model), use_shipped=False).export(path)
    return path


def run(program, *arguments):
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=600)


def saved(folder, name, array):
    np.save(folder / f"{name}.npy", array)
    return folder / f"{name}.npy"


@pytest.mark.thorough
def test_numbers_are_those_of_python(programs, mlp, tmp_path):
    x = sample()
    result = run(programs / "plain", mlp, saved(tmp_path, "x", x))
    assert result.returncode == 0 and result.stderr == ""
    expected = load(mlp)(x)
    assert float(result.stdout.rpartition("sum ")[2]) == pytest.approx(float(expected.sum()), rel=1e-4)
    result = run(programs / "run", mlp, tmp_path / "x.npy")
    assert result.returncode == 0 and result.stderr == ""  # no warning of TVM's for every function
    low, high = float(expected.min()), float(expected.max())
    assert f"from {low:.6g} to {high:.6g}" in result.stdout and "ms per call" in result.stdout


@pytest.mark.thorough
def test_inputs_are_made_up_where_none_are_given(programs, many):
    result = run(programs / "run", many)
    assert result.returncode == 0, result.stderr
    assert "nan" not in result.stdout and len(result.stdout.splitlines()) >= 3  # two outputs and the time


@pytest.mark.thorough
def test_what_is_wrong_is_told(programs, mlp, tmp_path):
    x = sample()
    cut = saved(tmp_path, "cut", x)
    cut.write_bytes(cut.read_bytes()[:-4])
    text = tmp_path / "text.npy"
    text.write_text("no array")
    wrong = {
        saved(
            tmp_path, "f64", x.astype("float64")
        ): f"given float64[{ROWS},{WIDTH}], the model takes float32",
        saved(tmp_path, "shape", x[:1]): f"given float32[1,{WIDTH}]",
        saved(tmp_path, "fortran", np.asfortranarray(x)): "not row-major",
        saved(tmp_path, "big", x.astype(">f4")): "a dtype that is not known, or big-endian",
        saved(tmp_path, "deep", np.zeros([1] * 9, "float32")): "more than 8 dimensions",
        cut: "cut off",
        text: "no .npy file",
        tmp_path / "none.npy": "No such file",
    }
    for path, message in wrong.items():
        result = run(programs / "plain", mlp, path)
        assert result.returncode == 1 and message in result.stderr, (path, result.stderr)
    result = run(programs / "plain", mlp)
    assert result.returncode == 1 and "given 0 inputs, the model takes 1" in result.stderr
    result = run(programs / "plain", text)
    assert result.returncode == 1 and "not a shared library" in result.stderr
    result = run(programs / "plain", mlp.parent)
    assert result.returncode == 1 and "it is a folder: name the .so in it" in result.stderr
    result = run(programs / "run", mlp, cut, text)
    assert result.returncode == 1 and "2 files, and the model takes 1" in result.stderr


def test_threads_that_share_a_model(programs, mlp, tmp_path):
    done = run(programs / "threads", mlp, saved(tmp_path, "x", sample()))
    assert (done.returncode, done.stdout) == (0, "0 1 8000 0\n"), done.stderr


def test_a_file_in_the_working_folder_is_found_by_its_name(programs, mlp):
    result = subprocess.run([programs / "run", mlp.name], cwd=mlp.parent, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_arrays_of_every_kind_are_read(programs, mlp, tmp_path):
    """Empty, scalar and unaligned-sized arrays get as far as the check of their shape."""
    for name, array, shown in (
        ("empty", np.zeros((0, 3), "float32"), "float32[0,3]"),
        ("scalar", np.float32(1), "float32[]"),
        ("odd", np.zeros(7, "int8"), "int8[7]"),
        ("flags", np.zeros((2, 2), bool), "bool[2,2]"),
    ):
        result = run(programs / "plain", mlp, saved(tmp_path, name, array))
        assert result.returncode == 1 and f"given {shown}" in result.stderr, result.stderr


def test_dimensions_of_one_name(programs, tmp_path):
    """Made-up inputs have the smallest sizes; what is unequal is named, and a range begins where it does."""
    from onnx import TensorProto, helper

    def value(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    ends = [value("a", ["n", "m"]), value("b", ["m"])], [value("y", ["n", "m"])]
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["y"])], "open", *ends)
    model = hetero_tvm.import_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]),
        shapes={"a": (hetero_tvm.Span(2, 5), hetero_tvm.Span(3, 9)), "b": (hetero_tvm.Span(3, 9),)},
    )
    path = tmp_path / "open.so"
    hetero_tvm.build_model(hetero_tvm.optimize_model(model), use_shipped=False).export(path)
    result = run(programs / "run", path)
    assert result.returncode == 0 and "y: float32[2,3]" in result.stdout, result.stderr
    files = [saved(tmp_path, f"of{n}", np.zeros(shape, "float32")) for n, shape in enumerate([(2, 4), 5, 4])]
    result = run(programs / "plain", path, files[0], files[1])
    wanted = "b: dimension 0 (m) is 5, and dimension 1 of a is 4: they must be equal"
    assert result.returncode == 1 and wanted in result.stderr
    assert run(programs / "plain", path, files[0], files[2]).returncode == 0
    result = run(programs / "plain", path, files[1], files[1])
    assert result.returncode == 1 and "the model takes float32[n,m]" in result.stderr


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_the_cmake_project(mlp, tmp_path):
    configure = ["cmake", "-S", FOLDER / "example", "-B", tmp_path, f"-Dhetero_tvm_DIR={cmake_folder()}"]
    subprocess.run([*configure, f"-DPython3_EXECUTABLE={sys.executable}"], check=True, capture_output=True)
    built = subprocess.run(["cmake", "--build", tmp_path], check=True, capture_output=True, text=True)
    assert "warning" not in built.stdout + built.stderr
    assert run(tmp_path / "run", mlp).returncode == 0


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_the_cmake_project_by_the_runtime_wheel(mlp, tmp_path):
    """That wheel has TVM's runtime beside the headers, and there is no package tvm."""
    folder = shutil.copytree(FOLDER, tmp_path / "runtime" / "cpp")
    (libraries := tmp_path / "runtime" / "lib").mkdir()
    there = Path(importlib.util.find_spec("tvm").origin).parent / "lib"
    for name in ("libtvm_runtime.so", "libtvm_runtime_extra.so"):
        shutil.copy2(there / name, libraries / name)
    configure = ["cmake", "-S", folder / "example", "-B", tmp_path / "build"]
    configure += [f"-Dhetero_tvm_DIR={folder / 'cmake'}", f"-DPython3_EXECUTABLE={sys.executable}"]
    subprocess.run(configure, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", tmp_path / "build"], check=True, capture_output=True)
    linked = (tmp_path / "build" / "CMakeFiles" / "run.dir" / "link.txt").read_text()
    assert str(libraries) in linked and str(there) not in linked
    assert run(tmp_path / "build" / "run", mlp).returncode == 0


@pytest.mark.parametrize(
    ("rank", "rows", "told"),
    [
        (2, 4, ""),
        (2, -1, "a: has a dimension below 0, or more elements than memory"),
        (2, 2**40, "a: has a dimension below 0, or more elements than memory"),
        (2, 6, "outside 2..5"),
        (100000, 4, "a: has no number of dimensions from 0 to 8"),
        (-1, 4, "a: has no number of dimensions from 0 to 8"),
    ],
)
def test_arrays_that_lie_about_themselves(programs, open_square, rank, rows, told):
    """They ended the process: memory of -1 rows was copied, and 100,000 dimensions were printed."""
    result = run(programs / "hostile", open_square, str(rank), str(rows))
    assert result.returncode == (1 if told else 0) and told in result.stderr
