"""The part of a target that the graph passes see: fusions, contracts, design spaces, precision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from hetero_tvm.errors import UsageError
from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.base import Machine
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.decoding.columns import PackedColumns
from hetero_tvm.ops.decoding.storage import Storage
from hetero_tvm.relax_passes.rewriting.rule import GraphPass
from hetero_tvm.schedules.base import DesignSpace


class OptimizingTarget(ABC):
    """Part of a target that turns a model's graph into kernels."""

    kind: str = ""

    precision: str = "f32"
    """Precision of what fused operators take and give: ``f32``, or ``f16`` (arithmetic stays float32)."""

    @property
    @abstractmethod
    def machine(self) -> Machine:
        """The hardware as this target's design spaces see it."""

    @property
    @abstractmethod
    def fusions(self) -> Sequence[GraphPass]:
        """Fusion rules of the optimize pipeline, in order."""

    @property
    @abstractmethod
    def spaces(self) -> Sequence[DesignSpace]:
        """Design spaces, tried in order."""

    @property
    def graph_dtype(self) -> str:
        """Type that the graph is converted to for this target (``relax_passes/storage/precision.py``)."""
        return "float32"

    def with_precision(self, precision: str) -> Any:
        """This target at another precision.  :class:`UsageError` when it has none but its own."""
        if precision != self.precision:
            raise UsageError(
                f"--precision {precision} is not available for target {self.kind}",
                hint=f"use --precision {self.precision}, the default",
            )
        return self

    def storing(self, storage: Storage) -> Any:
        """This target with constant weights in ``storage``.  :class:`UsageError` without such kernels."""
        raise UsageError(f"--target {self.kind} has no weights of few bits", hint="--target cpu has them")

    def smoothing(self, factors: Mapping[str, np.ndarray]) -> Any:
        """This target at ``int8`` with vectors that smooth operands of products, by source node.

        :class:`UsageError` when it quantises no rows at run time.
        """
        raise UsageError(f"--target {self.kind} smooths no operands", hint="--target cpu does")

    @property
    def pairs_safe(self) -> int:
        """Pairs of 8-bit weights that are scaled so that they cannot saturate 16 bits where they meet."""
        return 0

    @property
    def sums_once(self) -> bool:
        """Whether a convolution of bytes adds a quantised image to its result before that is rounded."""
        return False

    def rounding_attention(self) -> Any:
        """This target with products of attention of bfloat16, where it has faster ones: for a model whose
        other products are of 8 bits."""
        return self

    @property
    def takes_packed(self) -> bool:
        """Whether weights that a model brings packed may stay as they are, at this precision."""
        return False

    def for_packed(self, packed: PackedColumns) -> Any:
        """This target for a model that brings ``packed``, where it :attr:`takes_packed`."""
        return self

    def for_ranges(self, images: bool = False, alike: bool = False) -> Any:
        """This target for a model with open sizes, whose choices hold at each; with ``images``, at all rows
        and columns too, and ``alike``, whatever these would make of it."""
        return self

    def for_stored(self, dtype: str) -> Any:
        """This target at the precision for weights stored as ``dtype``, where none is asked for."""
        return self

    def scope(self) -> AbstractContextManager[Any]:
        """Context in which operators become TensorIR: sort and scan differ between kinds of devices."""
        return nullcontext()

    def contract_of(self, function: PrimFunc, name: str, flops: int) -> FusedOp | None:
        """A contract for a generic kernel, where this target has spaces for what carries none."""
        return None

    def space_for(self, op: FusedOp) -> tuple[DesignSpace | None, list[str]]:
        """The first space that serves ``op``, and the reasons of those that do not."""
        reasons = []
        for space in self.spaces:
            reason = space.refuses(op, self.machine)
            if reason is None:
                return space, reasons
            reasons.append(f"{space.name}: {reason}")
        return None, reasons
