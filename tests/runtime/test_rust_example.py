"""The example in Rust, through the C header: the same numbers, errors as errors."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hetero_tvm.runtime import cmake_folder, load
from tests.runtime.conftest import sample

EXAMPLE = Path(cmake_folder()).parent / "example" / "rust"


@pytest.mark.exhaustive
def test_numbers_are_those_of_python(mlp, tmp_path):
    if not shutil.which("cargo") or not shutil.which("cc"):
        pytest.skip("needs cargo and a C compiler")
    project = shutil.copytree(EXAMPLE, tmp_path / "run_a_model")  # as the README says; the header is far away
    variables = {**os.environ, "PYTHON": sys.executable, "CARGO_TARGET_DIR": str(tmp_path / "target")}
    subprocess.run(["cargo", "build", "--offline", "--quiet"], cwd=project, env=variables, check=True)
    program = tmp_path / "target/debug/run_a_model"
    x = sample()
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "bad.npy", x[:1])
    good = subprocess.run([program, mlp, tmp_path / "x.npy"], capture_output=True, text=True)
    assert good.returncode == 0 and good.stderr == ""
    expected = float(load(mlp)(x).astype("float64").sum())
    assert float(good.stdout.splitlines()[0].rpartition("sum ")[2]) == pytest.approx(expected, rel=1e-4)
    bad = subprocess.run([program, mlp, tmp_path / "bad.npy"], capture_output=True, text=True)
    assert bad.returncode == 1 and bad.stderr.startswith("error: ") and "the model takes" in bad.stderr
    none = subprocess.run([program], capture_output=True, text=True)
    assert none.returncode == 1 and "usage" in none.stderr
