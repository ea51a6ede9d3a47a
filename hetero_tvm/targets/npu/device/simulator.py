"""The C++ sources of driver and simulator: built once for Python, linked into exported libraries."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from hetero_tvm.host import native

FOLDER = "targets/npu/cpp/device"
FLAGS = ("-O2", "-fvisibility=hidden")


def folder() -> Path:
    """Folder of the sources and of ``hnpu.h``, ``hnpu_loader.h``."""
    return Path(str(importlib.resources.files("hetero_tvm").joinpath(FOLDER)))


def sources() -> list[str]:
    """Sources that an exported library compiles, absolute paths: C++17, no flags needed, links with -ldl.

    They define ``hnpu_driver`` (see ``hnpu_loader.h``), which gives the simulator or the library that
    the environment variable ``HNPU_DRIVER`` names.
    """
    return sorted(str(path) for path in folder().glob("*.cc") if path.name != "exports.cc")


def object_file() -> Path:
    """The sources as one relocatable object, compiled once and cached, its names hidden."""
    return native.compile_object(sources(), flags=FLAGS, name="hnpu")


def shared_library() -> Path:
    """The simulator with the names of ``hnpu.h`` exported; usable as ``HNPU_DRIVER``."""
    files = [object_file(), folder() / "exports.cc"]
    return native.compile_shared(files, flags=(*FLAGS, "-ldl"), name="hnpu-simulator")
