"""Findings about this machine and installation, each with what to do where something is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from hetero_tvm import host
from hetero_tvm.errors import HeteroTVMError
from hetero_tvm.host import native
from hetero_tvm.host.install import extra_command, pip_command
from hetero_tvm.runtime.manifest import current_versions
from hetero_tvm.runtime.tvm_runtime import PINS

OK, OPTIONAL, WARNING, MISSING = "ok", "optional", "warning", "missing"

_IS_X86 = platform.machine() == "x86_64"
EXTRAS = {
    "search": (
        ("xgboost-cpu" if _IS_X86 else "xgboost",),
        "a search that learns more from each trial",
    ),
    "jax": (("jaxlib",), "functions of JAX: StableHLO programs"),
    "tflite": (("tflite", "ai-edge-litert"), "TensorFlow Lite files, and LiteRT to compare with"),
    "plot": (("matplotlib",), "pictures of memory plans: inspect --plot, plan --plot"),
    "descriptions": (("jsonschema",), "kernel descriptions in JSON, as AKG has them"),
    "generate": (("tokenizers",), "texts in and out of language models: generate --prompt"),
    "grammar": (("llguidance",), "texts that follow a JSON schema or a grammar"),
    "serve": (("starlette", "uvicorn", "jinja2"), "language models behind HTTP: serve_text"),
    "bench": (("onnxruntime", "openvino", "torch"), "other runtimes beside ours: bench --vs"),
    "torch": (("torch", "onnxscript"), "models from PyTorch: torch.export programs and .pt2 files"),
    "cuda": (("nvidia-cuda-nvrtc",), "machine code for NVIDIA GPUs, without a CUDA toolkit"),
    "rpc": (("tornado", "cloudpickle", "psutil"), "measuring on other machines: serve, tune --rpc"),
    "notebook": (("ipykernel", "jupyterlab"), "the tutorials"),
    "docs": (("mkdocs-material",), "the documentation as a site: mkdocs build"),
    "test": (("pytest", "hypothesis"), "the tests"),
}
"""Extras of the package: distributions that each brings, and what for."""

_SPECIAL = ("avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8")
"""Features that make integers and halves fast."""
_UNEVEN = 0.5
"""Spread of repetitions above which a machine is told to be uneven."""
_NEEDED = ("numpy", "onnx", "ml_dtypes")


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Parameters
    ----------
    part : heading that it stands under.
    name, text : what was looked at, and what was found.
    status : ``ok``; ``optional`` for what could be installed; ``warning``; ``missing`` for what is needed.
    hint : what to do; empty where nothing is to be done.
    """

    part: str
    name: str
    text: str
    status: str = OK
    hint: str = ""


def findings() -> list[Finding]:
    """Everything that is looked at, in the order of reading."""
    return [*_machine(), *_noise(), *_tools(), *_packages(), *_targets(), *_records(), *_extras()]


def _machine() -> list[Finding]:
    facts = host.detect()
    vectors = f"{facts.simd_bits}-bit vectors"
    special = [name for name in _SPECIAL if name in facts.features]
    cores, all_cores = host.available_cores(), os.cpu_count() or 1
    quota = host.cpu_quota()
    limit = f", quota {quota:g}" if quota is not None else ""
    memory, available = _memory()
    return [
        Finding("machine", "CPU", f"{facts.model_name} ({facts.microarchitecture}, {facts.architecture})"),
        Finding("machine", "ISA", ", ".join([vectors, *special])),
        Finding(
            "machine", "caches", f"L1 {facts.l1d >> 10} kB, L2 {facts.l2 >> 10} kB, L3 {facts.l3 >> 20} MB"
        ),
        Finding(
            "machine", "cores", f"{len(cores)} of {all_cores} usable{limit}: {', '.join(map(str, cores))}"
        ),
        Finding(
            "machine",
            "memory",
            f"{available / 2**30:.1f} of {memory / 2**30:.1f} GiB available",
            OK if available > 2 << 30 else WARNING,
            "" if available > 2 << 30 else "tuning wants 2 GiB: end other programs",
        ),
        Finding("machine", "system", f"{platform.system()} {platform.release()}"),
    ]


def _memory() -> tuple[int, int]:
    """Bytes of memory, and of that what new programs may have."""
    values = {}
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition(":")
        values[name] = int(rest.split()[0]) * 1024
    return values["MemTotal"], values.get("MemAvailable", values["MemFree"])


def _noise() -> list[Finding]:
    """Load and evenness of this machine: how far measurements can be trusted."""
    load, cores = os.getloadavg()[0], len(host.available_cores())
    busy = host.busy_load(cores) is not None
    hint = "end other programs before you measure: times will be too long and uneven" if busy else ""
    times = []
    for _ in range(60):
        start = perf_counter()
        sum(range(20000))
        times.append(perf_counter() - start)
    times.sort()
    spread = (times[int(0.9 * len(times))] - times[0]) / median(times)
    uneven = spread > _UNEVEN
    return [
        Finding("noise", "load", f"{load:.1f} on {cores} cores", WARNING if busy else OK, hint),
        Finding(
            "noise",
            "spread",
            f"{spread:.0%} between repetitions of the same work on one core",
            WARNING if uneven else OK,
            "others use this core or its clock changes: compare only what was measured in turn"
            if uneven
            else "",
        ),
    ]


def _tools() -> list[Finding]:
    found = []
    try:
        compiler = native.find_compiler()
        found.append(Finding("tools", "C++ compiler", " ".join(compiler)))
    except HeteroTVMError as error:
        found.append(
            Finding("tools", "C++ compiler", error.message, MISSING, error.hint or "apt install g++")
        )
    nvcc = shutil.which("nvcc")
    found.append(
        Finding("tools", "nvcc", nvcc or "not there; the extra cuda does without", OK if nvcc else OPTIONAL)
    )
    folder = native.cache_dir()
    if (obstacle := _obstacle(folder)) is None:
        found.append(Finding("tools", "cache", str(folder)))
    elif (spare := native.spare_dir()) is not None and _obstacle(spare) is None:
        found.append(Finding("tools", "cache", f"{folder} is read; what is new goes to {spare}"))
    else:
        hint = f"export {native.CACHE_VARIABLE}=/path/to/a/folder"
        found.append(Finding("tools", "cache", _without(folder, obstacle), MISSING, hint))
    return found


def _without(folder: Path, obstacle: str) -> str:
    """The folder and what is in its way, which may be itself."""
    return obstacle if obstacle.startswith(f"{folder} ") else f"{folder}: {obstacle}"


def _obstacle(folder: Path) -> str | None:
    """Reason why nothing can be written to a folder that need not be there yet."""
    from hetero_tvm.records.appending import unwritable

    obstacle = unwritable(folder / "file")
    return None if obstacle is None else f"{obstacle} cannot be written to"


def _packages() -> list[Finding]:
    versions = current_versions()
    found = [Finding("packages", "Python", platform.python_version() + f" ({sys.executable})")]
    for pin in PINS:
        name, _, wanted = pin.partition("==")
        here = versions.get("tvm" if name == "apache-tvm" else "tvm_ffi")
        good = here == wanted
        hint = "" if good else pip_command(pin)
        text = "not installed" if here is None else here if good else f"{here}, but {wanted} is wanted"
        found.append(Finding("packages", name, text, OK if good else MISSING, hint))
    for name in _NEEDED:
        if importlib.util.find_spec(name) is None:
            hint = pip_command(name)
            found.append(Finding("packages", name, "not installed", MISSING, hint))
        else:
            found.append(Finding("packages", name, _version(name)))
    return found


def _version(module: str) -> str:
    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        return "installed"


def _targets() -> list[Finding]:
    from hetero_tvm.targets.registry import kinds, parse_target

    found = []
    for kind in kinds():
        try:
            target = parse_target(kind)
            words = target.describe()
            text = " ".join(
                filter(None, [str(words.get("device") or ""), *words.get("archs", ()), words["cpu"]])
            )
            found.append(Finding("targets", kind, text))
        except (HeteroTVMError, ImportError) as error:
            message = str(error).splitlines()[0]
            hint = getattr(error, "hint", None) or ""
            found.append(Finding("targets", kind, message, OPTIONAL, hint))
    return found


def _records() -> list[Finding]:
    from hetero_tvm.records.database import Filter, select
    from hetero_tvm.records.store import LOGS_VARIABLE, shipped_logs, user_logs

    machine = host.detect().microarchitecture
    found = []
    for name, folder in (("yours", user_logs()), ("shipped", shipped_logs())):
        if name == "yours" and (obstacle := _obstacle(folder)) is not None:
            hint = f"export {LOGS_VARIABLE}=/path/to/a/folder, or --logs: tune keeps its records there"
            found.append(Finding("records", name, _without(folder, obstacle), WARNING, hint))
            continue
        if folder is None or not folder.is_dir():
            text = f"{folder}: not there yet; the first tune makes it" if folder else "none"
            found.append(Finding("records", name, text, OK if folder else OPTIONAL))
            continue
        records = select(folder, Filter())
        here = sum(record.mcpu == machine for record in records)
        found.append(Finding("records", name, f"{len(records):,} ({here:,} for {machine}) in {folder}"))
    return found


def _extras() -> list[Finding]:
    found = []
    for extra, (modules, purpose) in EXTRAS.items():
        absent = [name for name in modules if not _is_there(name)]
        if not absent:
            found.append(Finding("extras", extra, f"installed: {purpose}"))
            continue
        text = f"{purpose} (without {', '.join(absent)})"
        found.append(Finding("extras", extra, text, OPTIONAL, extra_command(extra)))
    return found


def _is_there(distribution: str) -> bool:
    try:
        return bool(importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return False
