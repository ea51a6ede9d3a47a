"""Guarded memory finds what goes beyond it; kernels do not."""

import subprocess
import sys

import pytest

from tests.campaign.guard_pages import __main__ as command

BEYOND = """
import ctypes, sys
import numpy as np
from hetero_tvm.host.tvm import tvm
from tests.campaign.guard_pages.guarded import Guard
guard, tensor = Guard(), tvm.runtime.tensor(np.zeros(7, "float32"))
assert guard.blocks == 1
guard.watch()
floats, place = ctypes.cast(tensor.data_ptr(), ctypes.POINTER(ctypes.c_float)), int(sys.argv[1])
if sys.argv[2] == "read":
    floats[place]
else:
    floats[place] = 1.0
del tensor
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("place", "at", "how", "said"),
    [
        (8, "end", "read", "read at +32 of a block of 28 bytes"),
        (8, "end", "write", "write at +32 of a block of 28 bytes"),
        (7, "end", "write", "written at +28 of a block of 28 bytes"),
        (-1, "start", "read", "read at -4 of a block of 28 bytes"),
    ],
)
def test_what_goes_beyond_a_tensor_is_told(tmp_path, place, at, how, said):
    library, log = command.compiled(tmp_path), tmp_path / "log"
    subprocess.run(
        [sys.executable, "-c", BEYOND, str(place), how],
        cwd=command.ROOT,
        env=command.environment(library, at, log),
        check=False,
    )
    assert said in log.read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("options", [[], ["--open"], ["--images"]])
def test_kernels_of_generated_graphs_stay_within_their_tensors(monkeypatch, capfd, options):
    monkeypatch.setattr(sys, "argv", ["guard_pages", "--count", "2", "--nodes", "6", "--at", "end", *options])
    assert command.main() == 0
    assert "0 faults" in capfd.readouterr().out


@pytest.mark.thorough
def test_loops_that_stay_loops_are_guarded():
    """Their rounds are a function of their own, which tensors that were allocated in it do not leave."""
    tests = "tests/relax_passes/storage/test_rounds.py::test_rounds"
    asked = ["--at", "end", "--pytest", tests, "-q", "-p", "no:xdist"]
    done = subprocess.run([sys.executable, "-m", command.__name__, *asked], capture_output=True, text=True)
    assert done.stdout.endswith("0 faults\n") and "passed" in done.stdout and "failed" not in done.stdout
