"""Compiled regions as files, on their way from lowering to the external code generator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.targets.npu.regions.region import CompiledRegion


def save(regions: Sequence[CompiledRegion], machine: NpuMachine, folder: Path) -> None:
    """Write compiled regions where ``relax.ext.hnpu`` finds them."""
    (folder / "regions.json").write_text(
        json.dumps(
            {
                "spec": machine.spec.to_json(),
                "regions": [
                    {
                        "name": r.name,
                        "inputs": r.inputs,
                        "outputs": r.outputs,
                        "instructions": r.instructions,
                        "workspace": r.workspace,
                    }
                    for r in regions
                ],
            }
        ),
        encoding="utf-8",
    )
    for region in regions:
        (folder / f"{region.name}.stream").write_bytes(region.stream)
        (folder / f"{region.name}.constants").write_bytes(region.constants)


def load(folder: Path) -> tuple[dict[str, CompiledRegion], NPUSpec]:
    """Read the regions that :func:`save` wrote, by name, and the machine that they are for."""
    document = json.loads((folder / "regions.json").read_text(encoding="utf-8"))
    spec = document["spec"]
    spec["matrix_block"] = tuple(spec["matrix_block"])
    regions = {}
    for entry in document["regions"]:
        name = entry["name"]
        regions[name] = CompiledRegion(
            name,
            (folder / f"{name}.stream").read_bytes(),
            (folder / f"{name}.constants").read_bytes(),
            tuple(entry["inputs"]),
            tuple(entry["outputs"]),
            entry["instructions"],
            entry["workspace"],
        )
    return regions, NPUSpec.from_dict({k: v for k, v in spec.items() if k != "name"}, spec["name"])
