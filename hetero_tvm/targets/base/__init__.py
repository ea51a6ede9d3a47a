"""Targets: four small parts each, and nothing outside a target's own folder knows its name.

A target says how a graph is optimized for it (:class:`OptimizingTarget`), how kernels are compiled
(:class:`CompilingTarget`), how candidates are measured (:class:`MeasuredTarget`) and what it is
(:class:`DescribedTarget`).  Steps of the road are typed by the part that they use.
"""

from __future__ import annotations

from hetero_tvm.targets.base.compiling import Compiled, CompilingTarget
from hetero_tvm.targets.base.describing import DescribedTarget, LibraryProfile
from hetero_tvm.targets.base.measuring import MeasuredTarget
from hetero_tvm.targets.base.optimizing import OptimizingTarget

__all__ = [
    "Compiled",
    "CompilingTarget",
    "DescribedTarget",
    "LibraryProfile",
    "MeasuredTarget",
    "OptimizingTarget",
    "Target",
]


class Target(OptimizingTarget, CompilingTarget, MeasuredTarget, DescribedTarget):
    """Concrete target: a kind and the variant that it is built for."""

    def __repr__(self) -> str:
        described = self.describe()
        device = [described.get("device"), *described.get("archs", ()), described.get("cpu")]
        return f"<{type(self).__name__} {' '.join(filter(None, device))}>"

    @classmethod
    def from_variant(cls, variant: str) -> Target:
        """The target of ``KIND:VARIANT``; an empty variant is what is found on this machine.

        Raises
        ------
        TargetError : there is no such variant; lists those there are.
        """
        raise NotImplementedError
