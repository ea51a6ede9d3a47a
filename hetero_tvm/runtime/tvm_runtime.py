"""Find and load TVM's runtime, and only that: no compiler, no PyTorch, no ``import tvm``."""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hetero_tvm.errors import LibraryError
from hetero_tvm.host.without_torch import without_torch
from hetero_tvm.runtime.manifest import current_versions

BUNDLED = Path(__file__).parent / "lib"
"""Folder of TVM's libraries in a wheel of the runtime alone (``packaging/runtime_wheel.py``)."""
PINS = ("apache-tvm==0.27.0.post1", "apache-tvm-ffi==0.1.14.post1")


@dataclass(frozen=True)
class TVMRuntime:
    """The loaded runtime: ``ffi`` is the package ``tvm_ffi``, ``library`` is ``libtvm_runtime.so``."""

    ffi: ModuleType
    library: ctypes.CDLL

    def function(self, name: str) -> Any:
        """A global function of the runtime by its registered name."""
        return self.ffi.get_global_func(name)


@functools.lru_cache(maxsize=1)
def start() -> TVMRuntime:
    """Load the runtime once per process; a full ``tvm`` that is loaded already is shared.

    Raises :class:`LibraryError` when it is not installed.
    """
    try:
        with without_torch():
            ffi = importlib.import_module("tvm_ffi")
        folder = _library_folder()
        library = ctypes.CDLL(str(folder / "libtvm_runtime.so"), ctypes.RTLD_GLOBAL)
        extra = folder / "libtvm_runtime_extra.so"  # sort, argsort, top-k, random
        if extra.exists():
            ctypes.CDLL(str(extra), ctypes.RTLD_GLOBAL)
    except (ImportError, OSError) as error:
        archive = next((str(parent) for parent in BUNDLED.parents if parent.is_file()), None)
        raise LibraryError(
            f"TVM's runtime cannot be loaded: {error}",
            hint=f"pip install {' '.join(PINS)}"
            if archive is None
            else f"{archive} is an archive, and no library can be loaded out of one: unpack its folder "
            "hetero_tvm/runtime/lib, and export TVM_LIBRARY_PATH=/path/to/lib",
        ) from error
    return TVMRuntime(ffi, library)


def _library_folder() -> Path:
    folders = []
    if chosen := os.environ.get("TVM_LIBRARY_PATH"):
        folders.append(Path(chosen))
    if BUNDLED.is_dir():
        folders.append(BUNDLED)
    if "tvm" in sys.modules:
        folders.append(Path(sys.modules["tvm"].__path__[0]) / "lib")
    else:
        spec = importlib.util.find_spec("tvm")
        packages = (spec.submodule_search_locations if spec else None) or []
        folders += [Path(package) / "lib" for package in packages]
    for folder in folders:
        if (folder / "libtvm_runtime.so").exists():
            return folder
    looked = ", ".join(map(str, folders)) or "no package 'tvm', and TVM_LIBRARY_PATH is not set"
    raise ImportError(f"no libtvm_runtime.so ({looked})")


def check_versions(built_with: dict[str, str]) -> None:
    """Refuse a library of another release series: bytecode and ABI change between minor releases.

    ``built_with`` is a manifest's ``versions``.  Raises :class:`LibraryError`.
    """
    installed = current_versions()
    problems, wanted = [], []
    for key, distribution in (("tvm", "apache-tvm"), ("tvm_ffi", "apache-tvm-ffi")):
        built, here = built_with.get(key), installed.get(key)
        if built and here and built.split(".")[:2] != here.split(".")[:2]:
            problems.append(f"built with {distribution} {built}, installed is {here}")
            wanted.append(f"{distribution}=={built}")
    if problems:
        raise LibraryError(
            "the library needs another version of TVM",
            problems=problems,
            hint=f"pip install {' '.join(wanted)}    (or export the model again with what is installed)",
        )
