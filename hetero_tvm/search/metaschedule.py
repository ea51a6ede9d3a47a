"""MetaSchedule as this project uses it: imported quickly, with Python parts of our own."""

from __future__ import annotations

import contextlib
import functools
import importlib
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hetero_tvm.host.tvm import PyCostModel, PyMutator

_FOREIGN_INTRINSICS = ("cuda", "rocm", "hexagon", "arm_cpu", "riscv_cpu", "metal")


@contextlib.contextmanager
def _without_foreign_intrinsics() -> Iterator[None]:
    """While open, TVM's tensor intrinsics of other hardware import as empty modules.

    Every TuneContext imports all of them: 2 s of parsing, none of it for this machine.  They are not
    blocked for good: who wants one imports it afterwards under its own name.
    """
    package = "tvm.s_tir.tensor_intrin"
    if package in sys.modules:
        yield
        return
    names = [f"{package}.{name}" for name in _FOREIGN_INTRINSICS]
    stubs = {name: types.ModuleType(name) for name in names if name not in sys.modules}
    sys.modules.update(stubs)
    try:
        yield
    finally:
        for name, stub in stubs.items():
            if sys.modules.get(name) is stub:
                del sys.modules[name]
            attribute = name.rpartition(".")[2]
            if getattr(sys.modules.get(package), attribute, None) is stub:
                delattr(sys.modules[package], attribute)


@functools.lru_cache(maxsize=1)
def load_metaschedule() -> Any:
    """``tvm.s_tir.meta_schedule``, ready to make a TuneContext (0.4 s the first time)."""
    with _without_foreign_intrinsics():
        importlib.import_module("tvm.s_tir.tensor_intrin")
    from hetero_tvm.host.tvm import meta_schedule

    return meta_schedule


def _derived(cls: type) -> type:
    from hetero_tvm.host.tvm import derived_object

    return derived_object(cls)


@_derived
class KnobMutator(PyMutator):
    """Change one ``sample_categorical`` to another choice (the stock mutators never touch them)."""

    def __init__(self, rng: random.Random):
        super().__init__()
        self._rng = rng

    def _initialize_with_tune_context(self, context: Any) -> None:
        pass

    def apply(self, trace: Any, _: Any) -> Any:
        samples = [i for i in trace.insts if i.kind.name == "SampleCategorical"]
        instruction = self._rng.choice(samples)
        other = self._rng.randrange(len(instruction.attrs[0]) - 1)
        other += other >= int(trace.decisions[instruction])
        return trace.with_decision(instruction, other, remove_postproc=True)

    def clone(self) -> Any:
        return self


@_derived
class ScoredBy(PyCostModel):
    """A cost model that is a function of the candidates' traces; it is trained elsewhere."""

    def __init__(self, score: Callable[[list[Any]], np.ndarray]):
        super().__init__()
        self._score = score

    def load(self, path: str) -> None:
        pass

    def save(self, path: str) -> None:
        pass

    def update(self, context: Any, candidates: list[Any], results: list[Any]) -> None:
        pass

    def predict(self, context: Any, candidates: list[Any]) -> np.ndarray:
        return self._score([candidate.sch.trace for candidate in candidates])


def stock_space(sample: Callable[[Any], None] | None = None) -> Any:
    """MetaSchedule's own rules for a CPU, or a function that samples instead, with its postprocessors and
    mutators, but without the rewriting of weight layouts.

    (That one would change the kernel's arguments.)
    """
    ms = load_metaschedule()
    kind = "llvm"
    keep = [p for p in ms.postproc.Postproc.create(kind) if "RewriteLayout" not in type(p).__name__]
    mutators = dict(ms.mutator.Mutator.create(kind).items())
    if sample is not None:
        return ms.space_generator.ScheduleFn(sample, sch_rules=[], postprocs=keep, mutator_probs=mutators)
    return ms.space_generator.PostOrderApply(
        sch_rules=list(ms.schedule_rule.ScheduleRule.create(kind)), postprocs=keep, mutator_probs=mutators
    )
