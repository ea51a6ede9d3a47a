"""The engine as plain data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from hetero_tvm.machines.roofs import Roofs


@dataclass(frozen=True)
class Engine:
    """An engine that takes ``width`` columns at once, at one step per microsecond."""

    mcpu: str
    width: int
    features: tuple[str, ...] = ("fourth",)
    threads: int = 1
    variant: str = ""
    sorted_choices = False
    whole_models = False

    @property
    def lanes(self) -> int:
        return self.width

    def codegen_target(self) -> dict[str, Any]:
        return {"kind": "llvm", "opt-level": 1}

    def roofs(self) -> Roofs:
        return Roofs(2e-3 * self.width, None)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


ENGINES = {"small": Engine("small", 8), "big": Engine("big", 32)}
