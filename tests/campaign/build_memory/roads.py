"""Roads that a model of :mod:`tests.campaign.build_memory` may take, and their memory seen from outside."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.campaign.build_memory import onnx_files, programs

BAR = 2.5
WRITERS = {**onnx_files.WRITERS, **programs.WRITERS}
COMMANDS = {
    "build": ("build", "{model}", "--out", "{out}"),
    "build_range": ("build", "{model}", "--shape", "x=1..64x1024", "--out", "{out}"),
    "quantize_dynamic": ("quantize", "{model}", "--out", "{out}"),
    "quantize_weights": ("quantize", "{model}", "--out", "{out}", "--method", "weight-only"),
    "profile": ("profile", "{library}"),
}
"""Commands by kind; ``{library}`` is what another process exported before."""
_OF_COMMANDS = {"build_range": "range"}
_INTERVAL, _FAMILY_INTERVAL = 0.005, 0.05
"""Seconds between two looks at the memory, and at which processes there are (which takes longer)."""
KINDS = (*(kind for kind in WRITERS if kind != "range"), *COMMANDS)


def write_model(kind: str, size: int, folder: Path) -> Path:
    """A file of a kind with about ``size`` bytes of weights."""
    layer, _, write = WRITERS[kind]
    path = folder / ("model.pt2" if kind in programs.WRITERS else "model.onnx")
    write(max(1, round(size / layer)) if size else 0, path)
    return path


def road(kind: str, model: str, out: str) -> None:
    """Import, optimize, build, check, export, load, first call; says when each begins."""
    import hetero_tvm

    def begins(step: str) -> None:
        print(f"{time.monotonic()} {step}", flush=True)

    begins("import")
    imported = hetero_tvm.import_model(model)
    begins("optimize")
    optimized = hetero_tvm.optimize_model(imported)
    begins("build")
    built = hetero_tvm.build_model(optimized, logs=f"{out}/logs")
    if kind != "library":
        begins("check")
        built.check()
    begins("export")
    library = built.export(out)
    if kind == "library":
        return
    begins("load")
    net = hetero_tvm.load(library)
    begins("call")
    net(*(np.zeros(spec.shape, spec.dtype) for spec in net.signature.inputs))


def peak_of(command: list[str], output: Path) -> tuple[int, dict[str, int]]:
    """Largest number of bytes that a command and all processes below it have resident at the same time.

    Returns
    -------
    The peak, and that of each step which the command says that it begins.
    """
    seen: list[tuple[float, int]] = []
    with output.open("w") as file:
        process = psutil.Popen(command, stdout=file)
        family, looked = [process], 0.0
        while process.poll() is None:
            if time.monotonic() > looked + _FAMILY_INTERVAL:
                family, looked = [process, *_below(process)], time.monotonic()
            total = 0
            for one in family:
                try:
                    total += one.memory_info().rss
                except psutil.Error:
                    continue
            seen.append((time.monotonic(), total))
            time.sleep(_INTERVAL)  # the rate at which it is seen, not a wait for anything
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    begun = [
        (float(line.split()[0]), line.split()[1])
        for line in output.read_text().splitlines()
        if _is_step(line)
    ]
    steps: dict[str, int] = {}
    for at, total in seen:
        step = next((name for begin, name in reversed(begun) if begin <= at), "start")
        steps[step] = max(steps.get(step, 0), total)
    return max(total for _, total in seen), steps if begun else {}


def _is_step(line: str) -> bool:
    first, _, rest = line.partition(" ")
    return rest.isalpha() and first.replace(".", "", 1).isdigit()


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def measure(kind: str, size: int, folder: Path) -> dict[str, Any]:
    """Bytes of the weights in the file and in float32, and the peaks with them and without any."""
    peaks: dict[str, Any] = {}
    written = _OF_COMMANDS.get(kind, kind if kind in WRITERS else "external")
    layer, floats, _ = WRITERS[written]
    least = 1 if kind.startswith("quantize") else 0  # a model without products is refused
    for name, amount in (("base", least * layer), ("full", size)):
        place = folder / f"{kind}-{name}"
        place.mkdir(parents=True)
        own = [sys.executable, "-m", "tests.campaign.build_memory"]
        said = subprocess.run(
            [*own, "--write", written, str(amount), str(place)], check=True, capture_output=True, text=True
        )
        names = {
            "model": said.stdout.split()[-1],
            "out": str(place / "out"),
            "library": str(place / "library"),
        }
        if kind == "profile":
            subprocess.run(
                [*own, "--road", "library", names["model"], names["library"]], check=True, capture_output=True
            )
        command = [*own, "--road", kind, names["model"], names["out"]]
        if kind in COMMANDS:
            first, *rest = COMMANDS[kind]
            command = [sys.executable, "-m", f"hetero_tvm.{first}", *(part.format(**names) for part in rest)]
        peaks[name], peaks["steps"] = peak_of(command, place / "said")
        shutil.rmtree(place)
    count = max(1, round(size / layer) - least)
    return {"weights": count * layer, "floats": count * floats, **peaks}
