"""The target itself: its four parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fourth_target.codegen import compile_counting
from fourth_target.doubling import Doubling
from fourth_target.library import FourthLibrary
from fourth_target.machine import ENGINES, Engine
from fourth_target.space import FourthMatmul
from fourth_target.tuner import FourthTuner
from hetero_tvm.errors import TargetError, UsageError
from hetero_tvm.host.tvm import IRModule, PrimFunc, TVMTarget, tvm
from hetero_tvm.relax_passes.pipeline import FUSIONS
from hetero_tvm.relax_passes.rewriting.rule import GraphPass
from hetero_tvm.schedules.base import DesignSpace
from hetero_tvm.targets.base import Compiled, Target


class CallProfile:
    """Calls of each kernel in one call of the model."""

    def __init__(self, calls: dict[str, int]):
        self._calls = calls

    def to_json(self) -> dict[str, Any]:
        return {"calls": self._calls}

    def show(self, console: Any, top: int) -> None:
        for name, count in sorted(self._calls.items(), key=lambda item: -item[1])[:top]:
            console.print(f"{name}: {count}")

    def write_trace(self, path: Path) -> None:
        path.write_text(json.dumps({"traceEvents": [{"name": name, "ph": "i"} for name in self._calls]}))


class FourthTarget(Target):
    """The engine, small or big."""

    kind = "fourth"
    in_place = False

    def __init__(self, engine: Engine):
        self._engine = engine

    @classmethod
    def from_variant(cls, variant: str) -> FourthTarget:
        if (name := variant or "small") not in ENGINES:
            raise TargetError(f"there is no engine {variant!r}", hint=f"engines: {', '.join(ENGINES)}")
        return cls(ENGINES[name])

    @property
    def machine(self) -> Engine:
        return self._engine

    @property
    def fusions(self) -> Sequence[GraphPass]:
        return (Doubling(), *FUSIONS)

    @property
    def spaces(self) -> Sequence[DesignSpace]:
        return (FourthMatmul(),)

    @property
    def tvm_target(self) -> TVMTarget:
        return tvm.target.Target(self._engine.codegen_target())

    def schedule_generic(self, function: PrimFunc) -> PrimFunc:
        return function

    def compile(self, module: IRModule) -> Compiled:
        executable, kernels = compile_counting(module, self.tvm_target)
        return Compiled(executable, {"kernels": kernels})

    def tuner(self, rpc: str | None = None) -> FourthTuner:
        if rpc is not None:
            raise UsageError("--rpc: the engine's manual is read here")
        return FourthTuner(self._engine)

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "cpu": "", "isa": [], "threads": 1, "device": self._engine.mcpu}

    @classmethod
    def devices_served(cls) -> str:
        return f"engines: {', '.join(ENGINES)}"

    @classmethod
    def profile(cls, library: FourthLibrary, call: Callable[[], Any], seconds: float = 1.0) -> CallProfile:
        before = library.calls()
        call()
        return CallProfile({name: count - before[name] for name, count in library.calls().items()})
