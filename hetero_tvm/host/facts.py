"""Facts about a machine that schedules and records depend on."""

from __future__ import annotations

import dataclasses
import functools
import platform
from typing import Any

from hetero_tvm.host import cpu
from hetero_tvm.host.cores import available_cores


@dataclasses.dataclass(frozen=True)
class Host:
    """Facts about one machine.  Cache sizes in bytes."""

    model_name: str
    architecture: str
    microarchitecture: str
    """LLVM's name of the CPU (``znver4``); without LLVM the psABI level (``x86-64-v3``)."""
    features: frozenset[str]
    simd_bits: int
    registers: int
    """Architectural vector registers at ``simd_bits``."""
    fma_units: int
    """FMA instructions of full width per cycle (from names and features)."""
    cores: tuple[int, ...]
    l1d: int
    l2: int
    l3: int

    def to_json(self) -> dict[str, Any]:
        """A dict that :mod:`json` can write; :meth:`from_json` reads it back."""
        data = dataclasses.asdict(self)
        return {**data, "features": sorted(self.features), "cores": list(self.cores)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Host:
        return cls(**{**data, "features": frozenset(data["features"]), "cores": tuple(data["cores"])})


@functools.lru_cache(maxsize=1)
def detect() -> Host:
    """The facts of this machine.  Imports TVM to learn LLVM's name of the CPU, when installed."""
    features = cpu.cpu_features()
    architecture = platform.machine()
    named = _llvm_cpu_name()
    microarchitecture = cpu.shown_as(named, features) if named else cpu.psabi_level(features, architecture)
    simd_bits, registers = cpu.vector_unit(features, architecture)
    return Host(
        model_name=cpu.model_name(),
        architecture=architecture,
        microarchitecture=microarchitecture,
        features=features,
        simd_bits=simd_bits,
        registers=registers,
        fma_units=cpu.here_fma_units(microarchitecture, simd_bits),
        cores=available_cores(),
        **cpu.caches(),
    )


def _llvm_cpu_name() -> str | None:
    try:
        from hetero_tvm.host.tvm import tvm

        name = str(tvm.target.codegen.llvm_get_system_cpu())
    except Exception:  # a machine that only runs libraries has no compiler, or a stripped one
        return None
    return name if name and name != "generic" else None
