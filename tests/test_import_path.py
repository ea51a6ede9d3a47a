"""Commands, and the processes that they start, in a folder with files named like Python's modules."""

import os
import subprocess
import sys

import pytest

from hetero_tvm.import_path import command_of
from tests.import_graph import ROOT

_PYTHONS = ("numbers", "random", "queue", "json", "socket", "test", "onnx", "importlib", "typing")


@pytest.fixture
def folder(tmp_path):
    for name in _PYTHONS:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('imported the {name}.py of the user')\n")
    (tmp_path / "of_the_user.py").write_text("")
    return tmp_path


def run(command, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_command_of_runs_a_module_of_the_package_that_runs_here(folder):
    (folder / "types.py").write_text("raise SystemExit('imported the types.py of the user')\n")
    done = run(command_of("hetero_tvm", "--version"), folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("hetero-tvm ")


def test_children_find_the_package_without_a_path_to_it(tmp_path):
    done = subprocess.run(
        command_of("hetero_tvm", "--version"), cwd=tmp_path, capture_output=True, text=True, env={"PATH": "/"}
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [["-m", "hetero_tvm.plan"], ["-mhetero_tvm", "plan"]])
def test_python_m_imports_from_the_working_folder_last(folder, words):
    done = run([sys.executable, *words, "--help"], folder)
    assert done.returncode == 0, done.stderr
    assert "usage: " in done.stdout


def test_modules_of_the_working_folder_are_still_found(folder):
    program = (
        "import sys; sys.argv[0] = '-m'; sys.orig_argv[1:] = ['-m', 'hetero_tvm.tune']; import hetero_tvm; "
    )
    done = run(
        [sys.executable, "-c", program + "import random, of_the_user; print(sys.path[-1] == '')"], folder
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("script", ["onnx.py", "mine.py"])
def test_a_script_that_stands_in_for_a_package_is_named(tmp_path, script):
    (tmp_path / "onnx.py").write_text("")
    (tmp_path / script).write_text("import hetero_tvm; hetero_tvm.import_model('x.onnx')\n")
    done = run([sys.executable, script], tmp_path)
    assert f"{tmp_path}/onnx.py is imported in place of the package onnx" in done.stderr
    assert "give that file another name" in done.stderr


@pytest.mark.thorough
def test_build_bench_and_tune_import_no_file_of_the_user(folder):
    (folder / "types.py").write_text("raise SystemExit('imported the types.py of the user')\n")
    command = [
        sys.executable,
        "-c",
        "import sys; del sys.path[0]; from hetero_tvm.__main__ import main; main()",
    ]
    tiny = ["zoo:mobilenetv2-tiny", "--out", "out"]
    for words in (["tune", *tiny, "--trials", "2"], ["bench", "out/model.so", "--seconds", "0.2"]):
        done = run([*command, *words], folder)
        assert done.returncode == 0, done.stderr
        assert "of the user" not in done.stdout + done.stderr
