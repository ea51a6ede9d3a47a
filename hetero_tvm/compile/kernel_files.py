"""Files beside a library that is one kernel: what a caller needs to launch it, and its device code."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from hetero_tvm.compile.build import BuiltModel
from hetero_tvm.errors import BuildError
from hetero_tvm.host.files import replaced


def metadata(built: BuiltModel, library: Path) -> dict[str, Any]:
    """Description of a built kernel as JSON values.

    ``kernels`` are launched in order, by one call of the library; ``launch`` has, for each device
    architecture, grid and threads of the device functions, and the threads of the host otherwise.
    ``workspace`` is the size of the arena between them, in bytes.  ``implementation`` names the way to
    compute that the kernel was built from, where the description has several.
    """
    optimized = built.optimized
    target = optimized.target.describe()
    return {
        "kernel_name": optimized.model.name,
        "implementation": optimized.model.implementation or None,
        "library": library.name,
        "sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
        "target": target,
        "inputs": [spec.to_json() for spec in optimized.model.signature.inputs],
        "outputs": [spec.to_json() for spec in optimized.model.signature.outputs],
        "workspace": built.memory.peak,
        "launch": dict(built.facts) or {"host": {"threads": target.get("threads")}},
        "kernels": [
            {name: kernel[name] for name in ("kernel", "calls", "space", "record", "point", "flops", "bytes")}
            for kernel in built.kernels
        ],
    }


def write_kernel_files(built: BuiltModel, library: Path) -> list[Path]:
    """Write ``<stem>.kernel.json`` beside an exported library, and the code of each device architecture.

    Raises
    ------
    BuildError : the folder cannot be written.
    """
    described = metadata(built, library)
    files = {f"{library.stem}.{end}": code for end, code in built.device_code.items()}
    described["device_code"] = {
        name: {"sha256": hashlib.sha256(code).hexdigest(), "bytes": len(code)} for name, code in files.items()
    }
    files[f"{library.stem}.kernel.json"] = json.dumps(described, indent=2).encode() + b"\n"
    written = []
    for name, content in files.items():
        path = library.with_name(name)
        try:
            with replaced(path) as fresh:
                fresh.write_bytes(content)
        except OSError as error:
            raise BuildError(f"{path} cannot be written: {os.strerror(error.errno or 0)}") from error
        written.append(path)
    return written
