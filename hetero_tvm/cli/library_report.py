"""Report of an exported library: signature, target, kernels, registers, memory.

Only the manifest is read: nothing is loaded, so a library for a GPU or another CPU can be read anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetero_tvm.host.terminal import Column, Console, number_of, record_cell, table
from hetero_tvm.runtime.manifest import Manifest, read_manifest
from hetero_tvm.runtime.opening import resolve


def library_of(text: str) -> Path | None:
    """The library that a command's MODEL means (a ``.so``, or the folder of one); None: it is a model."""
    path = Path(text).expanduser()
    return resolve(path) if path.suffix == ".so" or path.is_dir() else None


def describe(path: Path) -> dict[str, Any]:
    """The manifest as JSON values, and the size of the file.

    Raises
    ------
    LibraryError : it is no library of hetero_tvm, or damaged.
    """
    return {"library": str(path), "bytes": path.stat().st_size, **read_manifest(path).to_json()}


def show(document: Mapping[str, Any], console: Console) -> None:
    """Print what :func:`describe` gave."""
    manifest = Manifest.from_json(dict(document))
    target = manifest.target
    console.print(" ".join([f"{manifest.name} for {target.kind}", *target.archs, target.cpu]).rstrip())
    console.print(f"  {document['library']}: {document['bytes']:,} bytes, made {manifest.created}")
    for way, specs in (("input", manifest.signature.inputs), ("output", manifest.signature.outputs)):
        for spec in specs:
            shape = "x".join(map(str, spec.shape)) or "scalar"
            console.print(f"  {way:7}{spec.name}: {shape} {spec.dtype}")
    if manifest.step is not None:
        console.print(f"sessions keep {number_of(len(manifest.step.room), 'state')} in place")
    if manifest.accuracy is None:
        console.print("numbers: never compared with a reference")
    else:
        worst = max(output["relative_error"] for output in manifest.accuracy)
        console.print(f"numbers: compared with a float64 reference, largest error {worst:.1e} of the largest")
    columns = [
        Column("kernel", text=True),
        Column("calls"),
        Column("design space", text=True),
        Column("record", text=True, rank=1),
    ]
    rows = [
        (row["kernel"], row["calls"], row["space"], record_cell(row["record"])) for row in manifest.kernels
    ]
    console.print(table("kernels", columns, rows, console.width))
    for device, kernels in manifest.device.items():
        known = {name: facts for name, facts in kernels.items() if "registers" in facts}
        if not known:
            continue
        headings = ("registers", "stack", "shared", "threads", "occupancy")
        columns = [Column("kernel", text=True), *map(Column, headings)]
        rows = [(name, *(_text(facts.get(one)) for one in headings)) for name, facts in known.items()]
        console.print(table(f"machine code for {device}", columns, rows, console.width))


def _text(value: Any) -> str:
    if value is None:
        return "?"
    return f"{value:.0%}" if isinstance(value, float) else f"{value:,}"
