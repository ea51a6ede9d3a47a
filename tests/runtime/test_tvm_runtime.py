"""TVM's runtime: found, loaded once, and of the right release."""

import pytest

from hetero_tvm.errors import LibraryError
from hetero_tvm.runtime import current_versions, tvm_runtime


def test_it_is_loaded_once():
    assert tvm_runtime.start() is tvm_runtime.start()
    assert tvm_runtime.start().function("runtime.NumThreads")() >= 1


def test_a_fresh_process_loads_no_compiler(run_python):
    script = """
import sys
from hetero_tvm.runtime import tvm_runtime
tvm_runtime.start()
print("tvm" in sys.modules, "libtvm_runtime" in open("/proc/self/maps").read())
"""
    assert run_python(script).split() == ["False", "True"]


def test_a_missing_runtime_names_what_to_install(run_python, tmp_path):
    """Where it was looked for, and the command; a folder of the user's choice comes first."""
    script = """
import importlib.util
from hetero_tvm.errors import LibraryError
from hetero_tvm.runtime import tvm_runtime
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "tvm" else find(name, *rest)
try:
    tvm_runtime.start()
except LibraryError as error:
    print(error)
"""
    text = run_python(script, TVM_LIBRARY_PATH=str(tmp_path))
    assert f"no libtvm_runtime.so ({tmp_path})" in text and "pip install apache-tvm==" in text


def test_a_package_in_an_archive_says_what_to_unpack(monkeypatch, tmp_path):
    """As where ``zipapp`` packs a program with the runtime wheel."""
    (tmp_path / "app.pyz").touch()
    monkeypatch.setattr(tvm_runtime, "BUNDLED", tmp_path / "app.pyz" / "hetero_tvm" / "runtime" / "lib")

    def nowhere():
        raise ImportError("no libtvm_runtime.so")

    monkeypatch.setattr(tvm_runtime, "_library_folder", nowhere)
    with pytest.raises(LibraryError, match=r"app.pyz is an archive[\s\S]*TVM_LIBRARY_PATH") as caught:
        tvm_runtime.start.__wrapped__()
    assert "pip install" not in caught.value.hint


def test_the_same_series_passes():
    installed = current_versions()
    patched = {key: ".".join([*version.split(".")[:2], "99"]) for key, version in installed.items()}
    for versions in (installed, patched, {}):
        tvm_runtime.check_versions(versions)


def test_another_series_is_refused_with_the_command():
    with pytest.raises(LibraryError, match=r"pip install apache-tvm==0\.1\.0"):
        tvm_runtime.check_versions({**current_versions(), "tvm": "0.1.0"})
