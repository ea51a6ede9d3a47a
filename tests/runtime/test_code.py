"""Loaded code: shared, freed, and never in need of a folder; seen from outside, in processes of their own."""

import json
import shutil
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

RESIDENT = """
import gc, json, os, re, shutil, sys
import numpy as np
from pathlib import Path
from hetero_tvm.runtime import load
x = np.ones((1, 2048), "float32")
def resident():  # KiB
    gc.collect()
    return int(re.search(r"VmRSS:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.thorough
def test_thirty_loads_of_a_file_take_the_memory_of_two(run_python, heavy):
    script = """
nets, sizes = [], []
for _ in range(30):
    nets.append(load(sys.argv[1], threads=1))
    assert (nets[-1](x) == 2048).all()
    sizes.append(resident())
print(json.dumps([sizes[1], sizes[-1]]))
"""
    second, last = json.loads(run_python(RESIDENT + script, heavy))
    assert last < 1.1 * second


@pytest.mark.thorough
def test_a_new_version_frees_the_old_one(run_python, heavy, tmp_path):
    """The same name, each time another file: its code goes with its last user, and so does its name."""
    script = """
path, sizes = Path(sys.argv[2]) / "model.so", []
for number in range(12):
    fresh = path.with_suffix(".fresh")
    shutil.copyfile(sys.argv[1], fresh)
    fresh.replace(path)
    net = load(path, threads=1)
    assert (net(x) == 2048).all()
    sizes.append(resident())
descriptors = len(os.listdir("/proc/self/fd"))
mapped = "model.so" in Path("/proc/self/maps").read_text()
print(json.dumps([sizes[2], sizes[-1], mapped, descriptors]))
"""
    second, last, mapped, descriptors = json.loads(run_python(RESIDENT + script, heavy, tmp_path))
    assert last < 1.1 * second and mapped and descriptors < 16


def test_no_folder_need_be_writable(run_python, mlp, wide, tmp_path):
    script = """
import shutil, sys, tempfile
import numpy as np
from pathlib import Path
from hetero_tvm.runtime import load
def refuse(*args, **options): raise FileNotFoundError("no usable temporary directory")
tempfile._get_default_tempdir = refuse
path = Path(sys.argv[3])
first, x = load(path), np.ones((8, 64), "float32")
path.unlink()
shutil.copyfile(sys.argv[2], path)  # another file under the name of a loaded one
second = load(path)
print(first(x).shape, second(np.ones((64, 256), "float32")).shape)
"""
    path = shutil.copyfile(mlp, tmp_path / "model.so")
    assert run_python(script, mlp, wide, path).split("\n")[0] == "(8, 64) (64, 256)"


def test_a_file_written_over_is_loaded_as_it_is_now(run_python, mlp, tmp_path):
    """Same inode, other content: only a copy can be loaded beside the first."""
    script = """
import shutil, sys
import numpy as np
from hetero_tvm.runtime import load
x = np.ones((8, 64), "float32")
first = load(sys.argv[2])
y = first(x)
with open(sys.argv[2], "r+b") as file:
    file.seek(0, 2)
    file.write(b"more")
second = load(sys.argv[2])
print(first.loaded_path != second.loaded_path, (second(x) == y).all())
"""
    path = shutil.copyfile(mlp, tmp_path / "model.so")
    assert run_python(script, mlp, path).split() == ["True", "True"]


def test_a_name_that_is_no_utf8_is_loaded(run_python, mlp, tmp_path):
    script = """
import os, sys
import numpy as np
from hetero_tvm.runtime import load
folder = os.path.join(os.fsencode(sys.argv[2]), b"caf\\xe9")
os.makedirs(folder)
os.rename(sys.argv[1], os.path.join(folder, b"m\\xff.so"))
net = load(os.fsdecode(os.path.join(folder, b"m\\xff.so")))
print(net(np.ones((8, 64), "float32")).shape)
"""
    path = shutil.copyfile(mlp, tmp_path / "model.so")
    assert run_python(script, path, tmp_path).split("\n")[0] == "(8, 64)"
