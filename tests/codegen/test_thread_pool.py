"""The pool under kernels that a process compiles for itself, as the processes that time candidates do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hetero_tvm import host

SCRIPT = """
import os
import numpy as np
from hetero_tvm.codegen import thread_pool
from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import s_tir, te, tvm

thread_pool.attach()
x = te.placeholder((64,), "float32", name="x")
function = te.create_prim_func([x, te.compute((64,), lambda i: x[i] + 1.0, name="y")])
schedule = s_tir.Schedule(function)
schedule.parallel(schedule.get_loops(schedule.get_sblock("y"))[0])
kernel = compile_kernels(schedule.mod["main"], tvm.target.Target("llvm")).jit()["main"]
tasks = lambda: [open(f"/proc/self/task/{t}/comm").read().strip() for t in os.listdir("/proc/self/task")]
before = tasks()
given, result = (tvm.runtime.tensor(np.full(64, value, "float32")) for value in (1, 0))
kernel(given, result)
print((result.numpy() == 2).all(), len(tasks()) - len(before), tasks().count("hetero_tvm"))
"""


@pytest.mark.thorough
@pytest.mark.skipif(len(host.available_cores()) < 2, reason="needs two cores")
def test_kernels_of_a_process_run_on_the_pool_and_tvm_starts_none():
    root = str(Path(__file__).resolve().parents[2])
    env = {**os.environ, "PYTHONPATH": root, "HETERO_TVM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=env)
    assert done.stdout.split() == ["True", "1", "1"], done.stdout + done.stderr
