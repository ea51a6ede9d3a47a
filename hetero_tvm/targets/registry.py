"""Targets by name.

Third-party packages register theirs through the entry-point group ``hetero_tvm.targets``: entry
``KIND = "module:Class"`` of a :class:`~hetero_tvm.targets.base.Target`, or ``KIND = "module:factory"``, where
the factory maps the variant text to one.  The kinds that come with this package are registered alike: by
reference, imported when they are asked for.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from hetero_tvm.errors import TargetError, unknown_name

if TYPE_CHECKING:  # the compiler is imported when a target is asked for
    from hetero_tvm.targets.base import Target

GROUP = "hetero_tvm.targets"


@dataclass(frozen=True)
class _Kind:
    """Kind of target, by reference.

    Parameters
    ----------
    target : ``module:Class``.
    early : ``module:function`` that begins what its tuner will need before the compiler is imported.
    """

    target: str
    early: str | None = None


_BUILTIN = {
    "cpu": _Kind(
        "hetero_tvm.targets.cpu.target:CpuTarget", "hetero_tvm.search.measure.forked_workers:spawn_early"
    ),
    "cuda": _Kind("hetero_tvm.targets.cuda.target:CudaTarget"),
    "npu": _Kind("hetero_tvm.targets.npu.target:NpuTarget"),
}


def _find(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def _factory(kind: str) -> Callable[[str], Target] | type[Target]:
    """Maker of targets of a kind: a class, or a function of the variant."""
    if kind in _BUILTIN:
        return _find(_BUILTIN[kind].target)
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if kind not in found:
        message, hint = unknown_name("there is no target", kind, sorted({*_BUILTIN, *found}))
        if kind.lower() in ("gpu", "nvidia"):
            hint = "NVIDIA GPUs are cuda, for example cuda:sm_90"
        if kind.startswith("llvm"):  # as TVM writes it
            named = re.search(r"-mcpu=([\w-]+)", kind)
            hint = f"a target of LLVM is {f'cpu:{named[1]}' if named else 'cpu'} here; {hint}"
        raise TargetError(message, hint=hint)
    return found[kind].load()


def kinds() -> tuple[str, ...]:
    """Names of all targets that are installed."""
    return tuple(sorted({*_BUILTIN, *(entry.name for entry in entry_points(group=GROUP))}))


def parse_target(text: str | Target) -> Target:
    """``KIND[:VARIANT[,VARIANT]]`` -> target; a target object is returned as it is.

    Raises
    ------
    TargetError : no such kind, or the kind refuses the variant.
    """
    if not isinstance(text, str):
        return text
    kind, _, variant = text.partition(":")
    factory = _factory(kind)
    return factory.from_variant(variant) if isinstance(factory, type) else factory(variant)


def target_class(kind: str) -> type[Target]:
    """The class of a kind.  :class:`TargetError`: no such kind."""
    factory = _factory(kind)
    return factory if isinstance(factory, type) else type(factory(""))


def start_early(kind: str) -> None:
    """Begin what tuning for a kind will need; imports no compiler."""
    if kind in _BUILTIN and (early := _BUILTIN[kind].early) is not None:
        _find(early)()


def target_at(text: str, rpc: str) -> tuple[str, str | None]:
    """The target that ``text`` means where another machine measures: a kind alone is the device there.

    The second result is the name of that device; None where it was not asked.

    Raises
    ------
    TargetError : the device there is none that the kind can be built for.
    TuningError, UsageError : nothing answers at the address, or it is none.
    """
    from hetero_tvm.search.measure import remote

    kind, _, variant = text.partition(":")
    address = remote.Address.parse(rpc)
    target = target_class(kind)
    if variant or target.device_door is None:
        return text, None
    device = remote.describe(address, target.device_door.device)
    return f"{kind}:{target.variant_for(device)}", str(device["name"])
