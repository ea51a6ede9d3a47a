"""Open an exported library: find it, see that it can run here, and start what runs it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from shlex import quote

from hetero_tvm import host
from hetero_tvm.errors import LibraryError, expect
from hetero_tvm.runtime import checksum, elf, tvm_runtime
from hetero_tvm.runtime.library import Library
from hetero_tvm.runtime.manifest import Manifest, read_manifest, verify_sidecar
from hetero_tvm.runtime.registry import opener
from hetero_tvm.runtime.threads import choose_pinning

VERIFY_VARIABLE = "HETERO_TVM_VERIFY"

_MODELS = (".onnx", ".pt2", ".tflite")
"""Ends of the names of models, which a library is built from."""


def load(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    pin: bool | Iterable[int] | None = None,
    verify: bool | None = None,
    device: int = 0,
    cuda_graph: bool | None = None,
) -> Library:
    """Load an exported library; needs no compiler.

    Parameters
    ----------
    path : the ``.so``, or its folder (``model.so`` there, or the only ``.so``).
    threads : size of the thread pool; default ``$HETERO_TVM_THREADS``, else the available cores.
    pin : keep each thread on a core of its own (True), on these cores (a list of ids), or let
        the scheduler decide (False); default ``$HETERO_TVM_PIN``, else see
        :func:`hetero_tvm.runtime.threads.choose_pinning`.
    verify : by default code and constants are compared with the checksum in the library (0.3 s per GB
        that is in memory).  False leaves it out (also ``$HETERO_TVM_VERIFY=0``); True also compares with
        the sha256 in ``<stem>.manifest.json``, when that file is there (also ``$HETERO_TVM_VERIFY=1``).
    device : number of the GPU, for a library that runs on one.
    cuda_graph : whether such a library runs its kernels as CUDA graphs; default
        ``$HETERO_TVM_CUDA_GRAPH``, else yes, where the device can capture them.

    Raises
    ------
    LibraryError : missing, damaged, not ours, for another CPU or version; before any of its code
        runs.
    UsageError : ``threads`` or ``pin`` cannot be had.
    """
    hints = {}
    if hasattr(path, "export"):
        hints[type(path)] = "export it first: hetero_tvm.load(built.export('out/model.so'))"
    expect(path, (str, os.PathLike), "load takes the path of an exported library, or of its folder", hints)
    so_path = resolve(Path(path).expanduser())
    elf.check_machine(so_path)
    manifest = read_manifest(so_path)
    _check_cpu(so_path, manifest)
    wanted = os.environ.get(VERIFY_VARIABLE, "")
    if verify or verify is None and wanted != "0":
        checksum.verify(so_path)
    if verify or verify is None and wanted not in ("", "0"):
        verify_sidecar(so_path)
    pin = pin if pin is None or isinstance(pin, bool) else list(pin)
    pinning = choose_pinning(threads, pin)
    tvm_runtime.check_versions(manifest.versions)
    if (open_library := opener(manifest.target.kind)) is not None:
        library = open_library(so_path, manifest, pinning, device, cuda_graph)
    else:
        library = Library(so_path, manifest, pinning)
    options = {"threads": threads, "pin": pin, "verify": verify, "device": device, "cuda_graph": cuda_graph}
    library.reopen = partial(load, str(so_path), **options)
    return library


def resolve(path: Path) -> Path:
    """Absolute path of the library that ``path`` means (the loader needs a slash in it)."""
    if str(path).startswith("zoo:") or path.is_file() and path.suffix.lower() in _MODELS:
        raise LibraryError(
            f"{path} is a model, and a library that was built from one is wanted",
            hint=f"python -m hetero_tvm.build {quote(str(path))} --out out, then name out/model.so",
        )
    if path.is_file():
        return path.resolve()
    if not path.exists():
        raise LibraryError(f"{path} does not exist", hint="name the exported .so or its folder")
    found = sorted(path.glob("*.so")) if path.is_dir() else []
    for candidate in found:
        if candidate.name == "model.so" or len(found) == 1:
            return candidate.resolve()
    if (path / "config.json").is_file() and not found:
        raise LibraryError(
            f"{path} is a checkpoint, and a library that was built from one is wanted",
            hint=f"python -m hetero_tvm.build {quote(str(path))} --out out, then name out",
        )
    if not found:
        deeper = [str(one.parent) for one in sorted(path.glob("*/model.so"))]
        models = sorted(str(one) for one in path.glob("*") if one.suffix in _MODELS)
        likely = deeper or models
        hint = f"did you mean {' or '.join(likely[:3])}?" if likely else "name the exported .so"
        raise LibraryError(f"no .so in {path}", hint=hint)
    raise LibraryError(
        f"{path} holds {len(found)} libraries and none is called model.so",
        problems=[candidate.name for candidate in found],
        hint="name one of them",
    )


def _check_cpu(path: Path, manifest: Manifest) -> None:
    features = host.cpu_features()
    missing = [flag for flag in manifest.target.isa if flag not in features]
    if missing and features:
        built = f"{path} was built for {manifest.target.cpu or 'another CPU'}"
        if set(missing) <= host.withheld_features() and (reason := host.refusal_of_tiles()):
            raise LibraryError(
                f"{built} with AMX, which this process may not use",
                problems=[reason],
                hint="set signal stacks of at least 64 KB, or build it with --target cpu:x86-64-v4, which "
                "has no AMX",
            )
        raise LibraryError(
            f"{built}; this CPU cannot run it",
            problems=[f"missing CPU feature: {flag}" for flag in missing],
            hint="build it on this machine, or with --target cpu:NAME for the oldest CPU that must run it "
            "(cpu:x86-64-v3 needs AVX2)",
        )
