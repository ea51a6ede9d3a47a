"""Part of the smoke test: small kernels under NVIDIA's ``compute-sanitizer``, where it is installed.

``memcheck`` finds accesses out of bounds, ``racecheck`` races in shared memory: a result may be right in
spite of both, and the CPU emulation sees neither.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.gpu import tensors
from benchmarks.gpu.results_file import ResultsFile

Kernel = dict[str, Any]
"""Compiled point for :mod:`.sanitizer_process`: ``name``, ``section``, ``label``, ``point``, ``library``."""

TOOLS = ("memcheck", "racecheck")
MARK = "hetero_tvm kernel "
"""Text that :mod:`.sanitizer_process` prints before the name of each kernel that it launches."""
_PREFIX = "========= "
_SECONDS, _PATIENCE = 40.0, 30.0
"""No kernel is launched after the first, and a process that has not ended after both is killed."""
_RESERVE = _SECONDS + _PATIENCE
_REPORTS = 5
"""Lines kept of each kernel."""


def find() -> str | None:
    """Path of the program, on ``PATH`` or in a CUDA toolkit in its usual place; None where there is none."""
    toolkits = sorted(map(str, Path("/usr/local").glob("cuda*/bin")), reverse=True)
    return shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ.get("PATH", ""), *toolkits]))


def smoke(compiled: Callable[[], Sequence[Kernel]], arch: str, results: ResultsFile) -> None:
    """Add one entry per tool; it says so where the program is not installed.

    ``compiled`` gives the kernels to run, the most telling first, and is called when they are needed.
    """
    program = find()
    kernels = functools.cache(compiled)
    missing = None
    if tensors.EMULATED:
        missing = "kernels run on the CPU emulation"
    elif program is None:
        missing = "compute-sanitizer is not installed"
    for tool in TOOLS:

        def measure(tool: str = tool) -> dict[str, Any]:
            if missing is not None or program is None:
                return {"status": "refused", "why": missing}
            return watch([program, "--tool", tool], kernels(), arch, _SECONDS)

        results.entry("smoke", f"compute-sanitizer {tool}", measure, 0.0 if missing else _RESERVE)


def watch(command: Sequence[str], kernels: Sequence[Kernel], arch: str, seconds: float) -> dict[str, Any]:
    """Launch every kernel once under ``command``, starting none after ``seconds``.

    Returns
    -------
    ``status`` (``ok``, ``wrong``, ``failed``, ``timeout``), how many kernels were ``checked`` of those
    ``asked``, and by kernel the ``reports`` of the tool.
    """
    end, rest = monotonic() + seconds, list(kernels)
    reports: dict[str, list[str]] = {}
    found: dict[str, Any] = {"status": "ok"}
    while rest and monotonic() < end:
        code, text = _run(command, rest, arch, end - monotonic())
        launched = parse(text)
        reports |= {name: lines for name, lines in launched.items() if lines}
        rest = rest[len(launched) :]
        if code == 0:
            break
        if code is None:
            found = {"status": "timeout", "why": f"no end {_PATIENCE:g} s after {seconds:g} s"}
            break
        if not launched:
            found = {"status": "failed", "why": f"exit status {code}: {text.strip()[-400:]}"}
            break
        # A report may end the context: kernels behind it run in a new process.
        reports.setdefault(list(launched)[-1], [f"exit status {code}: {text.strip()[-200:]}"])
    if reports:
        why = "; ".join(f"{name}: {lines[0]}" for name, lines in reports.items())
        found = {"status": "wrong", "why": why[:800]}
    return {**found, "checked": len(kernels) - len(rest), "asked": len(kernels), "reports": reports}


def parse(text: str) -> dict[str, list[str]]:
    """Kernels that were launched, in order, each with the first lines that the tool reported of it."""
    found: dict[str, list[str]] = {}
    name = None
    for line in text.splitlines():
        if line.startswith(MARK):
            name = line.removeprefix(MARK)
            found[name] = []
        elif name is not None and line.startswith(_PREFIX) and not line.startswith(_PREFIX + " "):
            report = line.removeprefix(_PREFIX)
            if "SUMMARY" not in report and len(found[name]) < _REPORTS:
                found[name].append(report[:200])
    return found


def _run(
    command: Sequence[str], kernels: Sequence[Kernel], arch: str, seconds: float
) -> tuple[int | None, str]:
    """Exit status (None: killed) and output of one process that launches ``kernels``."""
    with tempfile.TemporaryDirectory() as folder:
        request = Path(folder) / "kernels.json"
        request.write_text(json.dumps({"arch": arch, "kernels": list(kernels), "seconds": seconds}))
        paths = os.pathsep.join(path for path in sys.path if path)
        program = [*command, sys.executable, "-m", "benchmarks.gpu.sanitizer_process", str(request)]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        environment = {**os.environ, "PYTHONPATH": paths}
        try:
            done = subprocess.run(program, **streams, env=environment, timeout=seconds + _PATIENCE)
        except subprocess.TimeoutExpired as error:
            return None, (error.stdout or b"").decode(errors="replace")
        return done.returncode, done.stdout.decode(errors="replace")
