"""Commands as a user would type them here: what installs a package into this Python, and our own."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Index of PyTorch without CUDA, 0.2 GB: what PyPI has for Linux brings 3 GB of CUDA's libraries."""


def pip_command(*packages: str) -> str:
    """``.venv/bin/python -m pip install onnxruntime``: the exact command, for this interpreter."""
    python = Path(sys.executable)
    relative = os.path.relpath(python, os.getcwd()) if python.is_absolute() else str(python)
    name = relative if not relative.startswith("..") else str(python)
    index = f" --extra-index-url {_CPU_INDEX}" if _wants_cpu_torch(packages) else ""
    return f"{shlex.quote(name)} -m pip install {' '.join(map(shlex.quote, packages))}{index}"


def _wants_cpu_torch(packages: Iterable[str]) -> bool:
    """Whether PyTorch is among the packages, for a machine whose GPU, if any, PyTorch's CUDA cannot use."""
    torch = any(re.match(r"torch\b|.*\[(torch|bench|test)\]", package) for package in packages)
    return torch and sys.platform == "linux" and not Path("/dev/nvidiactl").exists()


def as_typed(text: str) -> str:
    """``python -m hetero_tvm.bench ...`` in a text as this process was started: ``hetero-tvm bench ...``,
    ``.venv/bin/python -m hetero_tvm.bench ...``; unchanged where it is no command of ours that runs."""
    started = sys.argv[0]
    if Path(started).name == "hetero-tvm":
        found = shutil.which("hetero-tvm")
        if found and os.path.samefile(found, started):
            started = "hetero-tvm"
        ours = f"{shlex.quote(started)} "
        return re.sub(r"python -m hetero_tvm\.(?=\w+(?![\w.]))", lambda _: ours, text)
    module = next((next_ for one, next_ in pairwise(sys.orig_argv) if one == "-m"), "")
    if module.partition(".")[0] != "hetero_tvm":
        return text
    return re.sub(r"(?<![\w/])python(?= -m hetero_tvm\b)", lambda _: shlex.quote(sys.orig_argv[0]), text)


def extra_command(extra: str) -> str:
    """Command that installs an extra of this package (``bench``, ``torch``, ...), which is on no index.

    From the checkout that it runs from; from the file it came from elsewhere.
    """
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "setup.cfg").is_file():
        source = os.path.relpath(checkout, os.getcwd())
        return pip_command(f"{'.' if source == '.' else source}[{extra}]")
    return pip_command(*requirements(extra))


def requirements(extra: str) -> list[str]:
    """Requirements of an extra, by the metadata of what is installed, the whole package or what only runs
    libraries; empty where there is none."""
    import importlib.metadata

    found: list[str] = []
    declared: list[str] = []
    for package in ("hetero-tvm-runtime", "hetero-tvm"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            declared = importlib.metadata.requires(package) or declared
    for text in declared:
        name, _, marker = text.partition(";")
        if f'extra == "{extra}"' in marker.replace("'", '"') and _is_for_here(text, extra):
            found.append(name.strip())
    return found


def _is_for_here(requirement: str, extra: str) -> bool:
    """Whether a requirement's marker holds on this platform; so it is taken where nobody can tell."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        try:
            from pip._vendor.packaging.requirements import Requirement
        except ImportError:
            return True
    marker = Requirement(requirement).marker
    return marker is None or marker.evaluate({"extra": extra})
