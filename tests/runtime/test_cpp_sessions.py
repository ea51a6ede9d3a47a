"""Sessions from C and C++: the numbers of Python's, step by step; forks, steps back, and mistakes."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm import Span
from hetero_tvm.runtime import cmake_folder
from tests.frontend.onnx.helpers import text_model

FOLDER = Path(cmake_folder()).parent
FLAGS = ["-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]

GROWING = """
step (float[batch, sequence, 8] x, float[batch, past, 8] past_0)
    => (float[batch, sequence, 8] y, float[batch, total, 8] present_0)
{
    present_0 = Concat<axis=1>(past_0, x)
    keys = Transpose<perm=[0, 2, 1]>(present_0)
    scores = MatMul(x, keys)
    shares = Softmax<axis=-1>(scores)
    y = MatMul(shares, present_0)
}
"""
FIXED = """
step (float[1, 2, 8] x, int64[2] at, float[1, 24, 8] cache, int64[1] seen_in)
    => (float[1, 2, 24] y, float[1, 24, 8] cache_out, int64[1] seen_out, int64[1] count)
{
    axis = Constant<value_ints=[-1]>()
    one = Constant<value_ints=[1]>()
    where = Unsqueeze(at, axis)
    front = Transpose<perm=[1, 0, 2]>(cache)
    rows = Transpose<perm=[1, 0, 2]>(x)
    after = ScatterND(front, where, rows)
    cache_out = Transpose<perm=[1, 0, 2]>(after)
    seen_out = Add(seen_in, one)
    count = Mul(seen_out, seen_out)
    keys = Transpose<perm=[0, 2, 1]>(cache_out)
    y = MatMul(x, keys)
}
"""


def compiled(folder, command, source):
    site = Path(importlib.util.find_spec("tvm").origin).parents[1]
    tvm, ffi = site / "tvm/lib", site / "tvm_ffi"
    program = folder / Path(source).suffix.lstrip(".")
    command = [*command, *FLAGS, str(Path(__file__).parent / source), f"-I{FOLDER}/include"]
    command += ["-isystem", f"{ffi}/include", f"-L{tvm}", f"-L{ffi}/lib", "-Wl,--no-as-needed"]
    command += ["-ltvm_runtime", "-ltvm_runtime_extra", "-ltvm_ffi", "-ldl"]
    subprocess.run([*command, f"-Wl,-rpath,{tvm}:{ffi}/lib", "-o", str(program)], check=True)
    return program


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if not shutil.which("gcc") or not shutil.which("g++"):
        pytest.skip("needs gcc and g++")
    return tmp_path_factory.mktemp("sessions")


@pytest.fixture(scope="module")
def driver(folder):
    return compiled(folder, ["g++", "-std=c++17"], "session_driver.cc")


def library(folder, text, shapes=None):
    model = hetero_tvm.optimize_model(hetero_tvm.import_model(text_model(text), shapes=shapes))
    return hetero_tvm.build_model(model).export(folder)


@pytest.fixture(scope="module")
def growing(folder):
    shapes = {"batch": (Span(1, 3),), "sequence": (Span(1, 6),), "past": (Span(0, 20),)}
    return library(folder / "growing", GROWING, shapes)


class Driver:
    """Commands for the program, and what it printed for each that prints."""

    def __init__(self, program, path, folder):
        self.program, self.path, self.folder, self.lines, self.files = program, path, folder, [], 0

    def __call__(self, *words):
        self.lines.append(" ".join(map(str, words)))

    def run(self, *arrays):
        paths = []
        for array in arrays:
            self.files += 1
            paths.append(self.folder / f"in{self.files}.npy")
            np.save(paths[-1], array)
        self.files += 1
        self("run", self.folder / f"out{self.files}", *paths)
        return self.folder / f"out{self.files}"

    def printed(self):
        command = [self.program, self.path]
        done = subprocess.run(
            command, input="\n".join(self.lines), capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout.splitlines()


def values(out, like, index=0):
    return np.fromfile(f"{out}.{index}", like.dtype).reshape(like.shape)


def test_a_state_that_grows_is_that_of_python(driver, growing, tmp_path):
    program, session = Driver(driver, growing, tmp_path), hetero_tvm.load(growing).session()
    random = np.random.default_rng(0)

    def x(count):
        return random.standard_normal((2, count, 8)).astype(np.float32)

    found = []

    def step(one, count):
        given = x(count)
        found.append((program.run(given), one(x=given)))

    for count in (3, 1, 6, 1):
        step(session, count)
    other = session.fork()
    program("fork")
    step(session, 2)
    program("use 1")
    step(other, 1)
    other.rewind(4)
    program("rewind 4")
    step(other, 3)
    program("length")
    program("use 0")
    step(session, 1)
    program("length")
    session.reset()
    program("reset")
    step(session, 1)
    program("length")
    header, *printed = program.printed()
    assert header.split() == ["x", "->", "y"]
    assert printed == [str(other.length), "14", "1"]
    for out, wanted in found:
        np.testing.assert_array_equal(values(out, wanted), wanted)


def test_a_state_of_one_size_and_one_that_is_computed_anew(driver, folder, tmp_path):
    path = library(folder / "fixed", FIXED)
    net = hetero_tvm.load(path)
    assert dict(net.manifest.step.room) == {"cache": 0}
    program, session = Driver(driver, path, tmp_path), net.session()
    random, found = np.random.default_rng(1), []
    for n, at in enumerate(([0, 1], [2, 3], [23, 4], [5, 2])):
        x, at = random.standard_normal((1, 2, 8)).astype(np.float32), np.array(at)
        found.append((program.run(x, at), session(x=x, at=at)))
        if n == 1:
            program("fork")
    program.run(x, np.array([0, 24]))
    found.append((program.run(x, at), session(x=x, at=at)))
    program("use 1")
    out = program.run(x, at)
    program("rewind 1")
    header, wrong, back = program.printed()
    assert header.split() == ["x", "at", "->", "y", "count"]
    assert "outside" in wrong and "cannot go back" in back
    for one, wanted in found:
        for n, array in enumerate(wanted):
            np.testing.assert_array_equal(values(one, array, n), array)
    assert values(out, wanted[1], 1) == 9  # the fork has taken two steps before


def test_mistakes_are_told_and_change_nothing(driver, growing, tmp_path):
    program = Driver(driver, growing, tmp_path)
    x = np.ones((1, 6, 8), np.float32)
    program.run(x)
    program.run(np.ones((2, 1, 8), np.float32))
    program.run(np.ones((1, 1, 8), np.int32))
    program.run(x, x)
    program.run(np.ones((1, 7, 8), np.float32))
    program("rewind 7")
    program("length")
    for _ in range(3):
        program.run(x)
    program.run(x)
    program("length")
    program("rewind 20")
    out = program.run(x[:, :1])
    _, batch, kind, several, long, back, length, full, last = program.printed()
    assert "past_0: dimension 0 (batch) is 1, and must be 2" in batch
    assert "given int32[1,1,8], the model takes float32" in kind
    assert "given 2 inputs, a step takes 1" in several
    assert "sequence" in long and "6" in long
    assert "past_0: has not so many elements" in back
    assert length == "6" and last == "24"
    assert "past" in full
    np.testing.assert_array_equal(values(out, x[:, :1]), x[:, :1])


def test_a_program_in_c(folder, growing, tmp_path):
    program = compiled(folder, ["gcc", "-std=c11"], "session_driver.c")
    session, random = hetero_tvm.load(growing).session(), np.random.default_rng(2)
    paths, sums = [], []
    for n, count in enumerate((2, 1, 3)):
        x = random.standard_normal((1, count, 8)).astype(np.float32)
        paths.append(tmp_path / f"{n}.npy")
        np.save(paths[-1], x)
        sums.append(float(session(x=x).sum(dtype=np.float64)))
    done = subprocess.run([program, growing, *paths], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    *printed, lengths = done.stdout.splitlines()
    np.testing.assert_allclose(np.float64(printed), [*sums, sums[-1]], rtol=1e-5)  # six digits are printed
    assert lengths == "6 5"


def test_a_model_without_states_is_refused(driver, folder):
    path = library(folder / "plain", "agraph (float[4] x) => (float[4] y) { y = Add(x, x) }")
    done = subprocess.run([driver, path], capture_output=True, text=True, input="")
    assert done.returncode == 1 and "no input that comes back" in done.stderr
