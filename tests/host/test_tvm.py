import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parents[2])


@pytest.mark.thorough
def test_tvm_comes_without_torch_and_with_its_threads_set(tmp_path):
    (tmp_path / "torch.py").write_text("IMPORTED = True")
    script = """
import os, sys
from hetero_tvm.host.tvm import tvm
assert tvm is sys.modules["tvm"] and "torch" not in sys.modules
import torch  # importable again
print(os.environ["TVM_NUM_THREADS"], os.environ["TVM_BIND_THREADS"])
print(int(os.environ["TVM_THREAD_POOL_SPIN_COUNT"]) < 100_000)
"""
    env = {key: value for key, value in os.environ.items() if not key.startswith("TVM_")}
    env["PYTHONPATH"] = f"{ROOT}{os.pathsep}{tmp_path}"
    result = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [str(len(os.sched_getaffinity(0))), "0", "True"]


@pytest.mark.thorough
def test_tvm_comes_to_users_without_a_home():
    script = """
import os, pathlib
def homeless(cls):
    raise RuntimeError("Could not determine home directory.")
pathlib.Path.home = classmethod(homeless)
from hetero_tvm.host.tvm import tvm
assert "XDG_CACHE_HOME" not in os.environ
"""
    env = {key: value for key, value in os.environ.items() if key not in ("HOME", "XDG_CACHE_HOME")}
    env["PYTHONPATH"] = ROOT
    result = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_tvmscript_still_sees_names_of_the_caller():
    """The faster stack walk finds closures, and leaves the standard module alone."""
    from hetero_tvm.host.tvm import script_I as I
    from hetero_tvm.host.tvm import script_T as T

    size = 16

    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def main(a: T.Buffer((size,), "float32"), b: T.Buffer((size,), "float32")):
            for i in range(size):
                with T.sblock("copy"):
                    v = T.axis.spatial(size, i)
                    b[v] = a[v]

    assert Module["main"].params[0].name
    assert inspect.stack.__module__ == "inspect"


def test_ctrl_c_in_a_function_that_tvm_calls_stays_one():
    from hetero_tvm.host.tvm import tvm_ffi

    def interrupted():
        raise KeyboardInterrupt("SIGTERM")

    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        tvm_ffi.convert(interrupted)()
