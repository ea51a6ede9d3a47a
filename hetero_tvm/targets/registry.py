"""Targets by name.

Third-party packages register theirs through the entry-point group ``hetero_tvm.targets``: entry
``KIND = "module:factory"``, where the factory maps the variant text to a
:class:`~hetero_tvm.targets.base.Target`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from hetero_tvm.errors import TargetError
from hetero_tvm.targets.base import Target

GROUP = "hetero_tvm.targets"


def _builtin() -> dict[str, Callable[[str], Target]]:
    def cuda(variant: str) -> Target:
        from hetero_tvm.targets.cuda.target import CudaTarget

        return CudaTarget.from_variant(variant)

    from hetero_tvm.targets.cpu.target import CpuTarget

    def npu(variant: str) -> Target:
        from hetero_tvm.targets.npu.target import NpuTarget

        return NpuTarget.from_variant(variant)

    return {"cpu": CpuTarget.from_variant, "cuda": cuda, "npu": npu}


def parse_target(text: str | Target) -> Target:
    """``KIND[:VARIANT[,VARIANT]]`` -> target; a target object is returned as it is.

    Raises
    ------
    TargetError : no such kind, or the kind refuses the variant.
    """
    if isinstance(text, Target):
        return text
    kind, _, variant = text.partition(":")
    factories = _builtin()
    if kind not in factories:
        found = {entry.name: entry for entry in entry_points(group=GROUP)}
        if kind not in found:
            known = ", ".join(sorted({*factories, *found}))
            raise TargetError(f"there is no target {kind!r}", hint=f"targets here: {known}")
        return found[kind].load()(variant)
    return factories[kind](variant)
